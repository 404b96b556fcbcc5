"""Trials that a file holds, so that jobs can be disturbed in between."""

import time
from pathlib import Path

from paxtune.experiment import Tunable
from tests.factories import tunables
from tests.factories.tiny import CountingInput
from trainer.experiment import Checkpoints, Evaluation
from trainer.inputs.base import Batch


class HeldInput(CountingInput):
    """Data that take a while to read, some steps after the first measurement.

    Attributes:
        hold: a file. As long as it exists, each batch takes `seconds`.
    """

    hold: str = ''
    seconds: float = 10.0

    def get_next(self) -> Batch:
        if self._batch >= 25 and Path(self.hold).is_file():
            time.sleep(self.seconds)
        return super().get_next()


def Held() -> Tunable:
    """Four trials, measured and saved at steps 20, 40 and 60."""
    made = tunables.Rates()
    return made.rebind(
        {
            'train_input': HeldInput(batch_size=8, is_training=True),
            'train.num_train_steps': 60,
            'train.evaluation': Evaluation(20),
            'train.checkpoints': Checkpoints(20),
            'search.budget.trials': 4,
        }
    )
