"""An experiment that fails where garbage is not collected."""

import gc

from paxtune.experiment import Tunable
from tests.factories import tunables
from tests.factories.tiny import CountingInput
from trainer.inputs.base import Batch


class CollectingInput(CountingInput):
    """Batches for a process that collects its garbage. Of the first one, a start has a look."""

    def get_next(self) -> Batch:
        if self._batch and not gc.isenabled():
            raise RuntimeError('garbage is not collected')
        return super().get_next()


def Rates() -> Tunable:
    """`tunables.Rates` with such batches."""
    made = tunables.Rates()
    made.rebind(train_input=CollectingInput(batch_size=8, is_training=True))
    return made
