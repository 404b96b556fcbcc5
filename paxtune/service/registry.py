import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.leases import LEASE_SECONDS
from paxtune.service.schema import RequestRejectedError
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore

MAX_STUDIES = 1000
"""Studies that a service may have open."""


class StudyRegistry:
    """Opens the coordinator of a study on its first use, and keeps it.

    Reading a large study does not delay calls to other studies.

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
        """Makes an empty registry of at most `max_studies` existing studies."""
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


class DatabaseStudies(StudyRegistry):
    """The coordinators of the studies in a database.

    Example:
        >>> studies = DatabaseStudies(Database(None))
        >>> studies('digits').study('').spec is None
        True
    """

    def __init__(
        self,
        database: Database,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens no study yet.

        Args:
            database: only this process writes to it.
            lease_seconds: the time that a worker may pass without a heartbeat.
            clock: in seconds.
        """
        super().__init__(self._coordinator, exists=self._exists)
        self._database, self._lease_seconds, self._clock = database, lease_seconds, clock

    def look(self) -> None:
        """Shows the coordinators that this process runs; call it every second.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        self._database.studies()
        for coordinator in self.opened().values():
            coordinator.tick()

    def _coordinator(self, study: str) -> StudyCoordinator:
        store = VizierStore(self._database, study)
        made = StudyCoordinator(store, self._lease_seconds, clock=self._clock)
        made.tick()  # The process may be stopped before it looks at it.
        return made

    def _exists(self, study: str) -> bool:
        return VizierStore(self._database, study).study_spec() is not None
