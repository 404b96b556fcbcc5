"""Tunable experiments for searches over several processes."""

import pyglove as pg

from paxtune.algorithms import Grid
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import WeightedSum
from paxtune.schedulers import MedianStopping
from tests.factories import tunables
from tests.factories.tiny import CountingInput
from trainer.inputs.base import Batch
from trainer.mesh import Mesh

_RATE, _BROKEN = 'task.learner.learning_rate', 'train_input.is_broken'


class OneHostFails(CountingInput):
    """Data that the second host cannot read to the end.

    Attributes:
        is_broken: whether that is so.
    """

    is_broken: bool = False

    def get_next(self) -> Batch:
        if self.is_broken and self.infeed_host_index == 1 and self._batch == 3:
            raise ValueError('the disk of this host is broken')
        batch = super().get_next()
        # The hosts have different examples.
        keep = slice(None, None, -1 if self.infeed_host_index else 1)
        return {name: array[:, keep] for name, array in batch.items()}


def Search() -> Tunable:
    """Five trials: the third is stopped early, the fourth fails in the second process."""
    made = tunables.Rates()
    trials = [(0.03, False), (0.02, False), (1e-4, False), (0.02, True), (0.05, False)]
    made.rebind(
        {
            'mesh': Mesh(data=-1),
            'train_input': OneHostFails(
                batch_size=8, is_training=True, is_broken=pg.oneof([False, True])
            ),
            'search.budget.trials': len(trials),
            'search.initial_trials': [{_RATE: rate, _BROKEN: broken} for rate, broken in trials],
            'search.scheduler': MedianStopping(min_trials=2),
        }
    )
    return made


def Timed() -> Tunable:
    """Three trials, rewarded for short steps."""
    made = tunables.Rates()
    hidden = 'task.model.stack.layers[0].feed_forward.hidden_dims'
    made.rebind(
        {
            'mesh': Mesh(data=-1),
            hidden: pg.oneof([32, 64, 512]),
            'search.budget.trials': 3,
            'search.algorithm': Grid(),
            'search.objective': WeightedSum(
                'minimize', ['eval/log_pplx', 'step_seconds'], [1.0, 1.0]
            ),
            'search.limits': [Limit('step_seconds', at_most=1000.0)],
        }
    )
    return made.rebind({'task.learner.learning_rate': 0.01})
