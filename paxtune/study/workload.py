from collections.abc import Sequence

from paxtune.config.search import Search
from paxtune.schedulers.base import Unit
from paxtune.search_space.space import Space
from paxtune.study.trial import Trial
from trainer.symbolic.component import Component


class StoredWorkload(Component):
    """A value that defines the work of its trials itself. `RunnerWorkload` adds how they run.

    Attributes:
        search: the configuration of its search.
    """

    search: Search

    def data(self) -> dict[str, str]:
        """Fingerprints of what the trials read, by name: a study keeps to the same data."""
        return {}

    def max_resource(
        self, space: Space, trials: Sequence[Trial], trial: Trial, unit: Unit
    ) -> float | None:
        """Returns what a trial uses if it is run to its end; None where that is unknown."""
        return None
