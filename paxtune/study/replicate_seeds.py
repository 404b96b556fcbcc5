"""Training seeds of the trials that try the same decisions."""

import pyglove as pg

from paxtune.experiment import Tunable
from trainer.symbolic.component import components
from trainer.symbolic.overrides import replaced


def reseeded(experiment: Tunable, repeat: int) -> Tunable:
    """An experiment with the seeds of one of its repeats.

    All seeds of training grow by one from repeat to repeat. `train.random_seed` seeds the initial
    weights and dropout. `input_random_seed` of the training input, and of inputs in it, seeds the
    order of the data. The evaluation stays the same.

    Args:
        experiment: every decision made.
        repeat: from 1, which leaves the experiment as it is.
    """
    if repeat == 1:
        return experiment
    changes = {'train.random_seed': experiment.train.random_seed + repeat - 1}
    root = experiment.train_input.sym_path
    for part in components(experiment.train_input):
        seed = getattr(part, 'input_random_seed', None)
        if isinstance(seed, int):
            path = pg.KeyPath('train_input') + (part.sym_path - root)
            changes[f'{path}.input_random_seed'] = seed + repeat - 1
    return replaced(experiment, changes, f'repeat {repeat}')
