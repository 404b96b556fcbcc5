"""Tunable experiments for tests, tiny and on synthetic data."""

from typing import Any

import pyglove as pg

from paxtune.algorithms import RandomSearch, RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from tests.factories.tiny import VOCAB, CountingInput, experiment
from trainer.decoding import Greedy
from trainer.experiment import Decoding
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Positions,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.symbolic.errors import UserError

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
