import time
from collections.abc import Callable

from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.leases import LEASE_SECONDS
from paxtune.service.registry import StudyRegistry
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore


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
