"""Parts of a search by their names in flags: `gp_bandit` for `GPBandit()`."""

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyglove as pg

from paxtune import algorithms, schedulers
from paxtune.algorithms.external.vizier_names import translated
from paxtune.config.flag_names import flag_name
from trainer.symbolic import literals
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.config.search import Search

C = TypeVar('C', bound=pg.Object)

_SCHEDULER_WORDS: Mapping[str, Literal['default'] | None] = {'none': None, 'default': 'default'}

_MISSING = pg.MISSING_VALUE


def component(kind: type[C], text: str, where: str, known: Mapping[str, Any] | None = None) -> C:
    """Makes the algorithm or the scheduler that a text names.

    Args:
        kind: `Algorithm` or `Scheduler`.
        text: as for `spelled`.
        where: as for `spelled`.
        known: as for `spelled`.

    Raises:
        UserError: the text names no such component.

    Example:
        >>> type(component(algorithms.Algorithm, 'gp_bandit', 'algorithm')).__name__
        'GPBandit'
    """
    found = literals.parse(spelled(where, text, classes_of(kind), known), where)
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
        text: as for `spelled`.
        where: as for `spelled`.
        known: as for `spelled`.

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
    """The classes of algorithms or of schedulers, by their names in flags."""
    return classes_by_name(algorithms if kind is algorithms.Algorithm else schedulers, kind)


def classes_by_name(module: ModuleType, base: type) -> dict[str, type[pg.Object]]:
    """The classes of a module that are derived from `base`, by their names in flags.

    Example:
        >>> from paxtune import schedulers
        >>> classes_by_name(schedulers, schedulers.Scheduler)['rank_stopping'].__name__
        'RankStopping'
    """
    return {
        flag_name(name): kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }


def spelled(
    where: str,
    text: str,
    classes: Mapping[str, type[pg.Object]],
    known: Mapping[str, Any] | None = None,
) -> str:
    """Translates a flag's text to the syntax of `--set`: `GPBandit()` for `gp_bandit`.

    Args:
        where: names the text in messages, such as '--algorithm=gp'.
        text: a name, or an unambiguous beginning of one, or Vizier's name of an algorithm; or a
            component with values for its fields, which is returned unchanged.
        classes: by name.
        known: default values for required fields.

    Raises:
        UserError: the name is unknown, or the component needs values.

    Example:
        >>> from paxtune import schedulers
        >>> classes = classes_by_name(schedulers, schedulers.Scheduler)
        >>> spelled('--scheduler=median', 'median', classes)
        'MedianStopping()'
        >>> spelled('--scheduler=asha', 'asha', classes, {'min_resource': 100})
        'Asha(min_resource=100)'
        >>> spelled('--scheduler=asha', 'asha', classes)
        Traceback (most recent call last):
        ...
        trainer.symbolic.errors.UserError: --scheduler=asha: write 'Asha(min_resource=…)'
    """
    if algorithms.Default in classes.values():
        text = translated(text, where)
    if '(' in text:
        return text
    begun = [name for name in classes if name.startswith(text)]
    name = begun[0] if text not in classes and len(begun) == 1 else text
    if name not in classes:
        # A beginning is enough: `median` for `median_stopping`.
        hint = nearest(text, dict.fromkeys([*classes, *(each.split('_')[0] for each in classes)]))
        raise UserError(
            f'{where}: expected one of {", ".join(sorted(classes))}. {hint}'.rstrip('. ')
        )
    kind, known = classes[name], known or {}
    missing = [name for name, field in kind.__schema__.items() if field.default_value is _MISSING]
    if all(name in known for name in missing):
        values = ', '.join(f'{name}={known[name]!r}' for name in missing)
        return f'{kind.__name__}({values})'
    needed = ', '.join(f'{name}=…' for name in missing)
    raise UserError(f"{where}: write '{kind.__name__}({needed})'")
