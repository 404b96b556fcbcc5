import base64
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.inputs.base import Batch
from trainer.inputs.libraries import libraries


class DatasetIterator:
    """Numpy batches of a deterministic dataset, from any position.

    A position is the number of batches read and, where the dataset supports it, the state of its
    iterator, with shuffle buffers and half-filled rows. With the state, restoring takes a fraction
    of a second; without it, all earlier batches are read again. Both are exact.
    """

    def __init__(self, make: Callable[[], Any], name: str):
        """Starts at the first batch.

        Args:
            make: makes the dataset, the same each time.
            name: names the dataset; the state of an iterator is restored only under the same name
                and the same version of TensorFlow.
        """
        self._make = make
        self._name = f'{name} tensorflow {libraries().tf.__version__}'
        self.num_read = 0
        self._dataset = make()
        self._iterator: Any = None

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        batch = {name: tensor.numpy() for name, tensor in next(self._iterator).items()}
        self.num_read += 1
        return batch

    def reset(self) -> None:
        """Goes back to the first batch."""
        # A second iteration of a dataset may shuffle differently.
        self._dataset = self._make()
        self._iterator = None
        self.num_read = 0

    def get_position(self) -> dict[str, Any]:
        """The position as JSON data; with a state, up to some megabytes."""
        position: dict[str, Any] = {'batch': self.num_read, 'pipeline': self._name}
        state = _state_of(self._iterator) if self.num_read else None
        return position if state is None else position | {'state': state}

    def set_position(self, position: dict[str, Any]) -> None:
        """Goes to a position of this or of an equal dataset."""
        if self._iterator is not None:
            self.reset()
        self.num_read = int(position['batch'])
        if 'state' in position and position['pipeline'] == self._name:
            self._iterator = iter(self._dataset)
            _restore(self._iterator, position['state'])
        else:
            self._iterator = iter(self._dataset.skip(self.num_read))


def _state_of(iterator: Any) -> str | None:
    tf = libraries().tf
    with tempfile.TemporaryDirectory() as directory:
        try:
            prefix = tf.train.Checkpoint(iterator=iterator).write(f'{directory}/state')
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError):
            return None  # Python functions and generators have no state.
        index, data = (Path(f'{prefix}.{part}').read_bytes() for part in _PARTS)
    # The length of the index stands before it.
    return base64.b64encode(zlib.compress(len(index).to_bytes(4) + index + data, 1)).decode()


def _restore(iterator: Any, state: str) -> None:
    tf = libraries().tf
    files = zlib.decompress(base64.b64decode(state))
    end = 4 + int.from_bytes(files[:4])
    with tempfile.TemporaryDirectory() as directory:
        for part, content in zip(_PARTS, (files[4:end], files[end:]), strict=True):
            Path(f'{directory}/state.{part}').write_bytes(content)
        tf.train.Checkpoint(iterator=iterator).read(f'{directory}/state').assert_consumed()


_PARTS = ('index', 'data-00000-of-00001')
