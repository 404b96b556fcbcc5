"""A look at the next batch of an input that does not use it up."""

from typing import Any

from trainer.inputs.base import Batch, Input
from trainer.inputs.specs import Spec, check_batch


class Peekable:
    """An input whose next batch can be looked at before it is taken.

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
        self._ahead: tuple[dict[str, Any], Batch] | None = None  # With the position before it.

    def peek_padded(self) -> Batch:
        """The batch that `get_next_padded` will return.

        Raises:
            EndOfData: there is none.
            UserError: it is not what the input says it is.
        """
        if self._ahead is None:
            # The batch stays here: to go back in the input could mean to read much again.
            position = self._data.get_position()
            self._ahead = (position, self._read())
        return self._ahead[1]

    def get_next_padded(self) -> Batch:
        """The next batch.

        Raises:
            EndOfData: there is none.
            UserError: it is not what the input says it is.
        """
        if self._ahead is None:
            return self._read()
        (_, batch), self._ahead = self._ahead, None
        return batch

    def get_position(self) -> dict[str, Any]:
        """Where `get_next_padded` continues, as JSON data."""
        return self._data.get_position() if self._ahead is None else self._ahead[0]

    def close(self) -> None:
        """Closes the input."""
        self._data.close()

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues exactly where `get_position` was taken.

        Raises:
            UserError: the position was taken in other data.
        """
        self._data.set_position(position)
        self._ahead = None

    def _read(self) -> Batch:
        if self._spec is None:
            self._spec = self._data.padded_spec()
        return check_batch(self._data.get_next_padded(), self._spec, self._data)
