"""Trials that last for seconds, so that jobs can be disturbed in between."""

import time

from paxtune.experiment import Tunable
from tests.factories import tunables
from tests.factories.tiny import CountingInput
from trainer.experiment import Checkpoints, Evaluation
from trainer.inputs.base import Batch


class SlowInput(CountingInput):
    """Data that take a while to read.

    Attributes:
        seconds: of a batch.
    """

    seconds: float = 0.1

    def get_next(self) -> Batch:
        time.sleep(self.seconds)
        return super().get_next()


def Slow() -> Tunable:
    """Sixteen trials of six seconds at least."""
    made = tunables.Rates()
    return made.rebind(
        {
            'train_input': SlowInput(batch_size=8, is_training=True),
            'train.num_train_steps': 60,
            'train.evaluation': Evaluation(20),
            'train.checkpoints': Checkpoints(20),
            'search.budget.trials': 16,
        }
    )
