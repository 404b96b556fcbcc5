"""Processes that end before they have a trial."""


class FalseStarts:
    """The processes in a row that ended before they had a trial.

    Attributes:
        count: their number.
    """

    def __init__(self, places: int = 1) -> None:
        """Counts for a number of processes at a time: three in a row of each are too many."""
        self.count, self._places = 0, places

    def note(self, is_one: bool, most: int = 3) -> bool:
        """Counts a process that has ended; returns True if there are too many, `most` of each."""
        self.count = self.count + 1 if is_one else 0
        return self.count >= most * self._places
