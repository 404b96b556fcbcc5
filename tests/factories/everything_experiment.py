"""One search over an architecture, a learning rate, a data mixture and a mesh, all at once."""

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward
from paxtune.search_space.constraints import Requires
from tests.factories.tiny import VOCAB, CountingInput, experiment
from trainer.inputs.mixture import MixtureInput
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.mesh import Mesh
from trainer.symbolic.derived import derived
from trainer.symbolic.ranges import intv

MAX_PARAMS = 8000


def Everything() -> Tunable:
    """Of the parameter limit and of the constraint, each forbids a good part of the space."""
    counting = CountingInput(batch_size=8, is_training=True)
    shared = {'width': pg.oneof([8, 16, 32]), 'quarter': intv(2, 16, 'log')}
    made = Tunable(
        **{**experiment(num_steps=2).sym_init_args, 'shared': shared},
        search=Search(
            MetricReward('minimize', 'eval/log_pplx'),
            budget=Budget(8),
            constraints=[
                Requires('mesh.data * mesh.fsdp <= train_input.batch_size', 'devices lie idle'),
                Requires('shared.width >= mesh.tensor * 4', 'too narrow for so many parts'),
            ],
            limits=[Limit(metric='num_params', at_most=MAX_PARAMS)],
        ),
    )
    block = TransformerBlock(
        Attention(num_heads=4),
        pg.oneof(
            [
                FeedForward(derived('shared.width * 2')),
                GatedFeedForward(derived('shared.quarter * 4')),
            ]
        ),
    )
    made.rebind(
        {
            'task.model': TransformerLm(
                Embedding(VOCAB, derived('shared.width')), Stack([block], repeats=intv(1, 3))
            ),
            'task.learner.learning_rate': pg.floatv(1e-4, 1e-1, 'log'),
            'train_input': MixtureInput(
                batch_size=pg.oneof([4, 8]),
                is_training=True,
                inputs={'a': counting, 'b': counting.clone()},
                weights={'a': pg.floatv(0.1, 0.9), 'b': 0.5},
            ),
            'mesh': pg.oneof([Mesh(data=8), Mesh(data=4, tensor=2), Mesh(data=2, tensor=4)]),
            'train.num_train_steps': 2,
        }
    )
    return made
