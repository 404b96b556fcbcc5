import threading
from collections.abc import Callable, Mapping
from typing import Any

from paxtune.service.schema import RequestRejectedError

MAX_STUDIES = 1000
"""Studies that a service may have open."""


class StudyRegistry:
    """Opens the coordinator of a study on its first use, and keeps it.

    Reading a large study does not delay calls to the others.

    Example:
        >>> registry = StudyRegistry(lambda study: [study])
        >>> registry('a') is registry('a')
        True
    """

    def __init__(
        self,
        make: Callable[[str], Any],
        max_studies: int = MAX_STUDIES,
        exists: Callable[[str], bool] = bool,
    ) -> None:
        """Makes an empty registry; it keeps at most `max_studies`, and only those that exist."""
        self._make, self._max_studies, self._exists = make, max_studies, exists
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._open: dict[str, Any] = {}

    def __call__(self, study: str) -> Any:
        """Returns the coordinator of a study; RequestRejectedError if too many studies are open."""
        coordinator = self._open.get(study)
        if coordinator is not None:
            return coordinator
        with self._lock:
            if study not in self._locks and len(self._locks) >= self._max_studies:
                raise RequestRejectedError(
                    'invalid', f'the service has {self._max_studies} studies open'
                )
            lock = self._locks.setdefault(study, threading.Lock())
        with lock:
            if study not in self._open:
                # After a failure, the next call tries again.
                made, exists = self._make(study), self._exists(study)
                if not exists:  # An invented name takes no memory.
                    self._locks.pop(study, None)
                    return made
                self._open.setdefault(study, made)
            return self._open[study]

    def opened(self) -> Mapping[str, Any]:
        """The open coordinators, by study."""
        return dict(self._open)
