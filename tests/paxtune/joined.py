"""Tunable experiments for searches over several processes."""

import pyglove as pg

from paxtune.experiment import Tunable
from paxtune.policies import MedianStopping
from tests.paxtune import tunables
from tests.trainer.tiny import CountingInput
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
            'search.num_trials': len(trials),
            'search.seeds': [{_RATE: rate, _BROKEN: broken} for rate, broken in trials],
            'search.policy': MedianStopping(min_trials=2),
        }
    )
    return made
