from typing import Any

from trainer.inputs.base import Batch, Input
from trainer.inputs.specs import Spec, check_batch


class Peekable:
    """An input with a peek at the next batch.

    Example:
        >>> from trainer.inputs import StdlibInput
        >>> data = Peekable(StdlibInput(batch_size=1, sequence_length=4, split='eval'))
        >>> seen, position = data.peek_padded(), data.get_position()
        >>> position['batch'], seen is data.get_next_padded(), data.get_position()['batch']
        (0, True, 1)
    """

    def __init__(self, data: Input) -> None:
        self._data = data
        self._spec: Spec | None = None
        self._ahead: tuple[dict[str, Any], Batch] | None = None  # The batch and its position.

    def peek_padded(self) -> Batch:
        """The next batch; `get_next_padded` returns it later.

        Raises:
            EndOfData: there is none.
            UserError: the batch does not match the spec of the input.
        """
        if self._ahead is None:
            # The batch is kept, since going back in the input can be slow.
            position = self._data.get_position()
            self._ahead = (position, self._read())
        return self._ahead[1]

    def get_next_padded(self) -> Batch:
        """The next batch.

        Raises:
            EndOfData: there is none.
            UserError: the batch does not match the spec of the input.
        """
        if self._ahead is None:
            return self._read()
        (_, batch), self._ahead = self._ahead, None
        return batch

    def get_position(self) -> dict[str, Any]:
        """The position of the next batch, as JSON data."""
        return self._data.get_position() if self._ahead is None else self._ahead[0]

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues at a result of `get_position`; raises UserError if it is of other data."""
        self._data.set_position(position)
        self._ahead = None

    def _read(self) -> Batch:
        if self._spec is None:
            self._spec = self._data.padded_spec()
        return check_batch(self._data.get_next_padded(), self._spec, self._data)
