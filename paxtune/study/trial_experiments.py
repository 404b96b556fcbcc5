"""Experiments, or other values, of the trials of a space."""

from typing import TYPE_CHECKING, Any

import pyglove as pg

from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from trainer.symbolic.component import components
from trainer.symbolic.derived import resolve
from trainer.symbolic.overrides import replaced

if TYPE_CHECKING:
    from paxtune.experiment import Tunable


def parts_of(space: Space, decisions: Decisions) -> 'dict[str, Tunable]':
    """Makes a tunable experiment concrete, by the name of the sub-experiment ('' without any).

    Derived values follow the changes of a sub-experiment.

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = space.decode(decisions).parts()
    return {name: resolve(part) for name, part in parts.items()}


def values_of(space: Space, decisions: Decisions) -> dict[str, Any]:
    """Makes the values of a trial: `parts_of` an experiment; otherwise one value, called ''."""
    if space.is_tunable:
        return dict(parts_of(space, decisions))
    return {'': space.materialize(decisions)}


def reseeded(experiment: 'Tunable', replicate: int) -> 'Tunable':
    """Returns an experiment with the training seeds of a replicate; the evaluation stays the same.

    Each replicate adds one to `train.random_seed` (initial weights, dropout), and to the
    `input_random_seed` of the training input and of inputs in it (order of the data).

    Args:
        experiment: every decision made.
        replicate: the replicate index, from 1, which leaves the experiment as it is.
    """
    if replicate == 1:
        return experiment
    changes = {'train.random_seed': experiment.train.random_seed + replicate - 1}
    root = experiment.train_input.sym_path
    for part in components(experiment.train_input):
        seed = getattr(part, 'input_random_seed', None)
        if isinstance(seed, int):
            path = pg.KeyPath('train_input') + (part.sym_path - root)
            changes[f'{path}.input_random_seed'] = seed + replicate - 1
    return replaced(experiment, changes, f'replicate {replicate}')
