"""Parts of a search by their names in flags: `gp_bandit` for `GPBandit()`."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyglove as pg

from paxtune import algorithms, schedulers
from paxtune.algorithms.external.vizier_names import translated
from trainer.symbolic import literals
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.config.search import Search

C = TypeVar('C', bound=pg.Object)

_SCHEDULER_WORDS: Mapping[str, Literal['default'] | None] = {'none': None, 'default': 'default'}

_MISSING = pg.MISSING_VALUE
_WORD_BEGINS = re.compile(r'(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])')


def component(kind: type[C], text: str, where: str, known: Mapping[str, Any] | None = None) -> C:
    """Makes the algorithm or the scheduler that a text names.

    Args:
        kind: `Algorithm` or `Scheduler`.
        text: a name, or an unambiguous beginning of one, or Vizier's name of an algorithm; or a
            component with values for its fields, in the syntax of `--set`.
        where: names the text in messages, such as '--algorithm=gp'.
        known: default values for required fields.

    Raises:
        UserError: the name is unknown, or the component needs values.

    Example:
        >>> component(schedulers.Scheduler, 'median', '--scheduler=median').min_trials
        5
        >>> component(schedulers.Scheduler, 'asha', '--scheduler=asha', {'min_resource': 100}).unit
        'steps'
        >>> component(schedulers.Scheduler, 'asha', '--scheduler=asha')
        Traceback (most recent call last):
        ...
        trainer.symbolic.errors.UserError: --scheduler=asha: write 'Asha(min_resource=…)'
    """
    if kind is algorithms.Algorithm:
        text = translated(text, where)
    if '(' not in text:
        text = _spelled(text, where, classes_of(kind), known or {})
    found = literals.parse(text, where)
    if not isinstance(found, kind):
        raise UserError(f'{where}: expected one of {kind.__name__.lower()}s, by its name')
    return found


def named_part(
    search: 'Search | None',
    name: str,
    text: str,
    where: str,
    known: Mapping[str, Any] | None = None,
) -> Any:
    """Returns the algorithm or the scheduler that a text names, for the field of a search.

    Args:
        search: keeps its own part if the text is the name of its class; None without a search.
        name: 'algorithm' or 'scheduler'. A scheduler may be 'none' or 'default', too.
        text: as for `component`.
        where: as for `component`.
        known: as for `component`.

    Raises:
        UserError: the text names no such part.
    """
    if name == 'scheduler' and text in _SCHEDULER_WORDS:
        return _SCHEDULER_WORDS[text]
    kind: type[pg.Object] = schedulers.Scheduler if name == 'scheduler' else algorithms.Algorithm
    current = None if search is None else search.sym_getattr(name)
    if classes_of(kind).get(text) is type(current):
        return current
    return component(kind, text, where, known)


def classes_of(kind: type) -> dict[str, type[pg.Object]]:
    """The classes of algorithms or of schedulers, by their names in flags.

    Example:
        >>> [name for name in classes_of(algorithms.Algorithm) if name[0] in 'gn']
        ['nsga2', 'gp_bandit', 'grid']
    """
    module = algorithms if kind is algorithms.Algorithm else schedulers
    return {
        flag_name(name): each
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, kind) and each is not kind
    }


def flag_name(class_name: str) -> str:
    """Returns the name of a class in flags.

    Example:
        >>> flag_name('GPBandit'), flag_name('NSGA2'), flag_name('RandomSearch')
        ('gp_bandit', 'nsga2', 'random_search')
    """
    return _WORD_BEGINS.sub('_', class_name).lower()


def _spelled(
    text: str, where: str, classes: Mapping[str, type[pg.Object]], known: Mapping[str, Any]
) -> str:
    """Translates a name to the syntax of `--set`: `GPBandit()` for `gp_bandit`."""
    text = flag_name(text) if flag_name(text) in classes else text
    begun = [name for name in classes if name.startswith(text)]
    name = begun[0] if text not in classes and len(begun) == 1 else text
    if name not in classes:
        # A beginning is enough: `median` for `median_stopping`.
        hint = nearest(text, dict.fromkeys([*classes, *(each.split('_')[0] for each in classes)]))
        raise UserError(
            f'{where}: expected one of {", ".join(sorted(classes))}. {hint}'.rstrip('. ')
        )
    kind = classes[name]
    missing = [name for name, field in kind.__schema__.items() if field.default_value is _MISSING]
    if all(name in known for name in missing):
        values = ', '.join(f'{name}={known[name]!r}' for name in missing)
        return f'{kind.__name__}({values})'
    known_fields = [str(name) for name in kind.__schema__.fields]
    is_known = where.startswith('--') or 'max_resource' not in known_fields
    missing += [] if is_known else ['max_resource']  # A function does not say its last step.
    needed = ', '.join(f'{name}=…' for name in missing)
    raise UserError(f"{where}: write '{kind.__name__}({needed})'")
