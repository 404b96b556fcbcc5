import pyglove as pg

from paxtune.experiment import Tunable
from trainer.symbolic.component import components
from trainer.symbolic.overrides import replaced


def reseeded(experiment: Tunable, repeat: int) -> Tunable:
    """Returns an experiment with the training seeds of a replicate; the evaluation stays the same.

    Each replicate adds one to `train.random_seed` (initial weights, dropout), and to the
    `input_random_seed` of the training input and of inputs in it (order of the data).

    Args:
        experiment: every decision made.
        repeat: the replicate index, from 1, which leaves the experiment as it is.
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
