from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

P = TypeVar('P')


class Document(NamedTuple, Generic[P]):
    """A document and its position.

    Attributes:
        here: its position.
        after: the position of the next one.
        tokens: int32 [N], at least one.
    """

    here: P
    after: P
    tokens: np.ndarray


class RowPacker(Generic[P]):
    """Cuts a sequence of documents into rows.

    With `packing`, rows are filled with documents, cut where a row ends. Without, each document is
    cut into its own rows.

    Attributes:
        place: position of the current document.
        offset: tokens of this document that have been taken.

    Example:
        >>> documents = [Document(0, 1, np.arange(5)), Document(1, 2, np.array([7, 8]))]
        >>> rows = RowPacker(iter(documents), 0, 0, length=3, packing=True)
        >>> [[part.tolist() for part in row] for row in rows.take(9)]
        [[[0, 1, 2]], [[3, 4], [7]], [[8]]]
        >>> rows.place, rows.offset
        (2, 0)
    """

    def __init__(
        self, documents: Iterator[Document[P]], place: P, offset: int, length: int, packing: bool
    ) -> None:
        """Starts in the first of the documents, at `place`, after `offset` tokens of it."""
        self.place, self.offset = place, offset
        self._documents, self._after = documents, place
        self._left = np.empty(0, np.int32)  # The rest of the document at `place`.
        self._length, self._packing = length, packing

    def take(self, count: int) -> list[list[np.ndarray]]:
        """The next rows, each a list of segments; fewer than `count` where the documents end."""
        rows = []
        for _ in range(count):
            row = self._row()
            if not row:
                break
            rows.append(row)
        return rows

    def _row(self) -> list[np.ndarray]:
        row: list[np.ndarray] = []
        left = self._length
        while left and (segment := self._next_segment(left)).size:
            row.append(segment)
            left -= segment.size
            if not self._packing:
                break
        return row

    def _next_segment(self, most: int) -> np.ndarray:
        """Up to `most` of the next tokens, all of one document; none if the documents end."""
        if not self._left.size:
            document = next(self._documents, None)
            if document is None:
                return self._left
            self.place, self._after = document.here, document.after
            self._left = document.tokens[self.offset :]
        segment, self._left = self._left[:most], self._left[most:]
        self.offset += segment.size
        if not self._left.size:
            self.place, self.offset = self._after, 0
        return segment
