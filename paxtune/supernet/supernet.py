import dataclasses
import functools
import itertools
import random
from collections.abc import Mapping
from typing import Any

import pyglove as pg

from paxtune.algorithms.encoding.sampling import draw
from paxtune.experiment import Tunable
from paxtune.search_space.decisions import Decisions, size
from paxtune.search_space.labels import parameter_path
from paxtune.search_space.space import Space
from paxtune.study.samples import Sample, fitting
from paxtune.study.trial_experiments import parts_of
from trainer.experiment import Checkpoints, Experiment
from trainer.layers.base import Layer
from trainer.layers.batch_norm import BatchNorm
from trainer.layers.choice import ChoiceLayer
from trainer.layers.shared import SharedWithPrevious
from trainer.layers.transformer import Identity
from trainer.symbolic.component import bind, components
from trainer.symbolic.errors import UserError

_MODEL = pg.KeyPath.parse('task.model')
_MAX_CANDIDATES = 64


@dataclasses.dataclass(frozen=True)
class Choice:
    """A layer of a supernet that chooses.

    Attributes:
        path: of the layer in the experiment.
        decisions: of each candidate, by id.
    """

    path: str
    decisions: tuple[Decisions, ...]

    @functools.cached_property
    def _indices(self) -> dict[frozenset[tuple[str, Any]], int]:
        return {frozenset(each.items()): index for index, each in enumerate(self.decisions)}

    @functools.cached_property
    def _ids(self) -> set[str]:
        return {id_ for each in self.decisions for id_ in each}

    def index(self, decisions: Decisions) -> int | None:
        """The index of the candidate that decisions of the whole space select; None without one."""
        own = frozenset(item for item in decisions.items() if item[0] in self._ids)
        return self._indices.get(own)


@dataclasses.dataclass(frozen=True)
class Supernet:
    """A model with the weights of all candidates of its layers.

    Attributes:
        space: of the experiment that it was made of; a path is one element.
        experiment: trains a path that is drawn in each step.
        choices: its layers that choose.
    """

    space: Space
    experiment: Experiment
    choices: tuple[Choice, ...]

    def numbers(self, decisions: Decisions) -> dict[str, int] | None:
        """The numbers of the task that select a path; None if a candidate is missing."""
        found = {each.path: each.index(decisions) for each in self.choices}
        if None in found.values():
            return None
        prefix = 'task.'
        return {
            f'{path.removeprefix(prefix)}.choice': index
            for path, index in found.items()
            if index is not None
        }


def supernet(tunable: Tunable) -> Supernet:
    """Makes the supernet of an experiment whose decisions all lie in layers of its model.

    A layer with decisions becomes a choice between all layers that it can be. Several decisions of
    one layer are one choice between their combinations.

    Raises:
        UserError: a decision lies elsewhere, is no choice, has too many combinations or changes
            another layer, or a layer has running statistics.

    Example:
        >>> from search_spaces import lm, nas
        >>> from trainer.layers import FeedForward, Identity, Residual
        >>> layers = [Residual(FeedForward(hidden_ratio=pg.oneof([1.0, 2.0]))), Identity()]
        >>> experiment = nas.StdlibNas().rebind({'task.learner.learning_rate': 0.01})
        >>> experiment = experiment.rebind({'task.model.stack': nas.decoder(3, layers)})
        >>> [len(each.decisions) for each in supernet(experiment).choices]
        [3, 3, 3]
    """
    if tunable.sub_experiments:
        raise UserError('sub_experiments: a supernet is one model; remove them')
    space = Space(tunable)
    # One draw of each seed: other draws would make another supernet.
    base = next(fitting(space, (draw(space.spec, random.Random(seed)) for seed in range(100))))
    concrete = base.values['']
    _require_no_running_statistics(tunable)
    choices, layers = [], {}
    for path, combinations in _combinations(space).items():
        found = _candidates(space, base, path, combinations)
        choices.append(Choice(path, tuple(decisions for decisions, _ in found)))
        layers[path] = ChoiceLayer([layer for _, layer in found])
    return Supernet(space, _with_layers(concrete, layers), tuple(choices))


def _require_no_running_statistics(tunable: Tunable) -> None:
    for each in components(tunable.task.model):
        if isinstance(each, BatchNorm):
            raise UserError(
                f'{each.sym_path}: the running statistics of BatchNorm would be those of all paths '
                'mixed; use another normalization, such as GroupNorm'
            )


def _with_layers(concrete: Tunable, layers: Mapping[str, Layer]) -> Experiment:
    # A path cannot decode: its layers have no caches.
    changes: dict[str, Any] = {**layers, 'decode_inputs': {}, 'train.decoding': None}
    if concrete.train.checkpoints is None:
        changes['train.checkpoints'] = Checkpoints()
    changed = concrete.clone(deep=True).rebind(changes, raise_on_no_change=False)
    fields = changed.sym_init_args
    return Experiment(**{name: fields[name] for name in map(str, Experiment.__schema__.keys())})


def _combinations(space: Space) -> dict[str, list[Decisions]]:
    """Lists the combined decisions of each layer that has any, by its path."""
    found: dict[str, list[Any]] = {}
    # The hyper values of a template and the elements of its spec correspond.
    primitives = pg.template(space.value).hyper_primitives
    owners = [_owner(space.value, path) for path, _ in primitives]
    for owner, point in zip(owners, space.spec.elements, strict=True):
        outermost = min((each for each in owners if owner.is_relative_to(each)), key=len)
        found.setdefault(str(outermost), []).append(point)
    return {place: _combined(place, points) for place, points in found.items()}


def _combined(place: str, points: list[pg.DNASpec]) -> list[Decisions]:
    count = size(pg.geno.Space(points))
    if count is not None and count > _MAX_CANDIDATES:
        raise UserError(
            f'{place}: its decisions have {count} combinations, and a layer of a supernet has at '
            f'most {_MAX_CANDIDATES}: give it fewer decisions'
        )
    return [_merged(each) for each in itertools.product(*map(_assignments, points))]


def _owner(value: Any, decision: pg.KeyPath) -> pg.KeyPath:
    """The path of the innermost layer of the model that a `ChoiceLayer` can replace."""
    path = decision
    while path.is_relative_to(_MODEL) and path != _MODEL:
        if _accepts(value.sym_get(path.parent), path.key):
            return path
        path = path.parent
    raise UserError(
        f'{decision}: a supernet chooses between layers of the model, such as those of a Stack. '
        f'Fix this decision with --set {decision}=VALUE'
    )


def _accepts(owner: Any, key: str | int) -> bool:
    """True if a value of `owner` may be any layer."""
    field = owner.sym_attr_field(key)
    spec = None if field is None else field.value
    return isinstance(spec, pg.typing.Object) and spec.cls is Layer and not spec.is_noneable


def _assignments(point: pg.DNASpec) -> list[Decisions]:
    """Lists the assignments of a part of a space."""
    if isinstance(point, pg.geno.Space):
        return [_merged(each) for each in itertools.product(*map(_assignments, point.elements))]
    path = parameter_path(point.id.path)
    if not isinstance(point, pg.geno.Choices) or point.num_choices != 1:
        raise UserError(f'{path}: a supernet needs pg.oneof. Fix this decision with --set')
    return [
        {point.id.path: index, **inner}
        for index, candidate in enumerate(point.candidates)
        for inner in _assignments(candidate)
    ]


def _merged(parts: tuple[Decisions, ...]) -> Decisions:
    return {id_: value for part in parts for id_, value in part.items()}


def _candidates(
    space: Space, base: Sample, path: str, combinations: list[Decisions]
) -> list[tuple[Decisions, Layer]]:
    """Makes the layer of each combination that is feasible."""
    ids = {id_ for each in combinations for id_ in each}
    others = {id_: value for id_, value in base.decisions.items() if id_ not in ids}
    drawn, found = base.values[''], []
    for decisions in combinations:
        try:
            made = parts_of(space, others | decisions)['']
        except ValueError:
            continue  # It does not fit to the other drawn layers.
        layer = made.sym_get(path)
        _require_same_elsewhere(drawn, made, path)
        if isinstance(layer, SharedWithPrevious):
            raise UserError(
                f'{path}: SharedWithPrevious has no weights of its own, and cannot be a candidate '
                'of a supernet'
            )
        found.append((decisions, layer.clone(deep=True)))
    return found


def _require_same_elsewhere(drawn: Tunable, made: Tunable, path: str) -> None:
    one, other = (bind(each, {path: Identity()}) for each in (drawn, made))
    if pg.ne(one, other):
        raise UserError(
            f'{path}: values elsewhere follow its decisions, and a supernet chooses each layer '
            'alone; give them values of their own'
        )
