"""Sweeps: the rows of a table, and all combinations of some values.

    python -m paxtune.search --exp=examples.sweep.Rows
    python -m paxtune.search --exp=examples.sweep.Grid

4 rows take half a minute on two cores, and so do the 6 trials of the grid; the best of either
reaches about 3.7 bits per byte. To compare all of them:

    python -m paxtune.studies trials runs/examples.sweep.Rows --sort=reward
"""

import pyglove as pg

from paxtune import Tunable, parameter_sweep
from search_spaces.tunable_lm import Tiny

HEADS = 'task.model.stack.layers[0].attention.num_heads'
REPEATS = 'task.model.stack.repeats'
RATE = 'task.learner.learning_rate'


def Rows() -> Tunable:
    """Runs one trial for each row, in this order; the columns replace the decisions of Tiny."""
    rows = [
        # Heads, repeats, learning rate.
        [2, 1, 0.03],
        [2, 2, 0.02],
        [4, 1, 0.02],
        [4, 2, 0.01],
    ]
    return parameter_sweep(Tiny(), [HEADS, REPEATS, RATE], rows)


def Grid() -> Tunable:
    """Runs 2 × 3 trials: every combination of the decisions."""
    experiment = Tiny()
    experiment.rebind({HEADS: 4, RATE: pg.oneof([0.003, 0.01, 0.03])})
    return parameter_sweep(experiment)
