"""Tunable experiments whose sizes are searched, for tests."""

import pyglove as pg

from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.search_space.constraints import Requires
from paxtune.study.sweeps import parameter_sweep
from tests.factories import tiny_images
from tests.factories.tiny import experiment
from tests.factories.tunables import Rates
from trainer.layers import Chain, Conv2D, GlobalPool, Linear
from trainer.symbolic.derived import derived
from trainer.symbolic.ranges import intv

DIMS = 'task.model.embedding.dims'
HEADS = 'task.model.stack.layers[0].attention.num_heads'
HIDDEN = 'task.model.stack.layers[0].feed_forward.hidden_dims'
SIZE = 'task.model.stack.layers[0].attention.head_dim'


def Following() -> Tunable:
    """A head size that follows the width and the number of heads, both of them open."""
    made = Rates()
    made.rebind(
        {
            'task.learner.learning_rate': 0.1,
            DIMS: pg.oneof([8, 12, 16]),
            HEADS: intv(1, 4),
            SIZE: derived('embedding.dims / num_heads'),
            'search.constraints': [Requires(f'{DIMS} != 12', 'twelve is unlucky')],
            'search.limits': [Limit('num_params', at_most=2000)],
        }
    )
    return made


def Table() -> Tunable:
    """A sweep of two rows."""
    return parameter_sweep(experiment(), [DIMS, HEADS], [[8, 2], [16, 4]])


def Widths() -> Tunable:
    """Four widths; two of them are within the limit on parameters, and one within both limits."""
    made = Rates()
    made.rebind(
        {
            'task.learner.learning_rate': 0.1,
            HIDDEN: pg.oneof([32, 64, 128, 1024]),
            'search.limits': [
                Limit('num_params', at_most=4000),
                Limit('state_bytes', at_least=40_000),
                Limit('train/steps_per_second', at_least=1.0),
            ],
        }
    )
    return made


def Images() -> Tunable:
    """Two classifiers of images."""
    base = tiny_images.experiment(Chain([Conv2D(4), GlobalPool(), Linear(4)]))
    made = Tunable(**dict(base.sym_init_args), search=Rates().search)
    return made.rebind({'task.model.layers[0].channels': pg.oneof([4, 8])})
