"""Tunable experiments for tests, tiny and on synthetic data."""

from typing import Any

import pyglove as pg

from paxtune.algorithms import RandomSearch, RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from paxtune.search_space.constraints import Requires
from paxtune.study.sweeps import parameter_sweep
from tests.factories import tiny_images
from tests.factories.tiny import VOCAB, CountingInput, experiment
from trainer.decoding import Greedy
from trainer.experiment import Decoding
from trainer.inputs.mixture import MixtureInput
from trainer.layers import (
    Attention,
    Chain,
    Conv2D,
    Embedding,
    FeedForward,
    GatedFeedForward,
    GlobalPool,
    Identity,
    Layer,
    Linear,
    Positions,
    Residual,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.mesh import Mesh
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

REWARD = MetricReward(goal='minimize', metric='eval/log_pplx')


def _tunable(**search: Any) -> Tunable:
    base = experiment(num_steps=6)
    fields = {'objective': REWARD, 'budget': Budget(4), 'algorithm': RandomSearch()} | search
    return Tunable(**dict(base.sym_init_args), search=Search(**fields))


def Rates() -> Tunable:
    """One structure, many learning rates."""
    made = _tunable()
    made.rebind({'task.learner.learning_rate': pg.floatv(1e-4, 1e-1, 'log')})
    made.rebind(smoke={'train.num_train_steps': 1})
    return made


def Writing() -> Tunable:
    """Judged by what it writes."""
    made = _tunable(objective=MetricReward('maximize', Metric.decode('log_prob')), budget=Budget(2))
    made.rebind(
        {
            'task.learner.learning_rate': pg.floatv(1e-4, 1e-1, 'log'),
            'task.decoder': Greedy(4, prompt_length=2),
            'decode_inputs': {'test': CountingInput(batch_size=8)},
            'train.decoding': Decoding(2),
        }
    )
    return made


def Kinds() -> Tunable:
    """Conditional choices, evolved; 16 trials."""
    made = _tunable(
        budget=Budget(16),
        algorithm=RegularizedEvolution(population_size=4, tournament_size=2),
        scheduler=MedianStopping(min_trials=4),
    )
    made.rebind(
        {
            'task.model.stack.layers[0].feed_forward': pg.oneof(
                [FeedForward(32), GatedFeedForward(pg.oneof([16, 24]))]
            ),
            'task.learner.learning_rate': pg.floatv(1e-4, 1e-1, 'log'),
        }
    )
    return made


class Failing(FeedForward):
    """A feed-forward layer that raises, returns NaN, or needs more memory than there is."""

    how: str

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        if self.how == 'raise':
            raise RuntimeError('this layer cannot be built\nfor a long reason')
        if self.how == 'nan':
            return x_BTD * float('nan')
        if self.how == 'huge':
            return x_BTD @ self.param('huge', (16, 10**12), ('embed', 'mlp'))[:, :16]
        return x_BTD


def Failures() -> Tunable:
    """Each way for a trial to fail, and one that does not."""
    made = _tunable(budget=Budget(8))
    how = pg.oneof(['raise', 'nan', 'huge', 'none'])
    heads = pg.oneof([2, 3])
    block = TransformerBlock(Attention(heads), Failing(how=how))
    model = TransformerLm(Embedding(VOCAB, 16), Stack([block]))
    made.rebind({'task.model': model})
    return made


class NoData(CountingInput):
    """An input that is not there."""

    def prepare(self) -> None:
        raise UserError('looked in /nowhere')


def WithoutData() -> Tunable:
    """An experiment whose data is missing, at a tiny size not."""
    made = Rates()
    made.rebind(
        {
            'train_input': NoData(batch_size=8, is_training=True),
            'smoke': {'train_input': CountingInput(batch_size=8, is_training=True)},
        }
    )
    return made


def rates(num_trials: int = 2, **changes: Any) -> Tunable:
    """A tiny experiment whose learning rate is searched; dots in paths are written as `__`."""
    made = Rates()
    paths = {path.replace('__', '.'): value for path, value in changes.items()}
    return made.rebind({'search.budget.trials': num_trials, **paths}, raise_on_no_change=False)


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


def kinds() -> list[Layer]:
    """Three kinds of a layer, of four models."""
    wide = Residual(FeedForward(hidden_dims=pg.oneof([16, 24])))
    return [wide, Residual(Attention(2)), Identity()]


def layers(**search: Any) -> Tunable:
    """Two layers, each of four models."""
    fields = {'objective': REWARD, 'budget': Budget(4), 'scheduler': None} | search
    made = Tunable(**dict(experiment().sym_init_args), search=Search(**fields))
    chosen = [pg.oneof(kinds()), pg.oneof(kinds())]
    return made.rebind({'task.model.stack.layers': chosen})


def Layers() -> Tunable:
    """`layers`, for the command line."""
    return layers()


def blocks() -> Tunable:
    """Two blocks with decisions inside of them."""
    made = layers()
    block = {'feed_forward': pg.oneof([FeedForward(16), GatedFeedForward(16)])}
    one = experiment().task.model.stack.layers[0]
    other = one.clone(deep=True).rebind({**block, 'attention.num_heads': pg.oneof([2, 4])})
    return made.rebind({'task.model.stack.layers': [one, other]})


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
                Requires('shared.width >= mesh.tensor * 4', 'too narrow for its parts'),
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
