from collections.abc import Sequence
from typing import Any

from paxtune.config.search import Search
from paxtune.schedulers.base import Unit
from paxtune.search_space.space import Space
from paxtune.study.trial import Trial
from trainer.symbolic.component import Component


class RunnerWorkload(Component):
    """A value that makes the runner of its trials. Workers find it through the study.

    Attributes:
        search: the configuration of its search.
    """

    search: Search

    def runner(self) -> Any:
        """Makes the runner of its trials: see `paxtune.running.runner`."""
        raise NotImplementedError(type(self).__name__)

    def data(self) -> dict[str, str]:
        """Fingerprints of what the trials read, by name: a study keeps to the same data."""
        return {}

    def max_resource(
        self, space: Space, trials: Sequence[Trial], trial: Trial, unit: Unit
    ) -> float | None:
        """Returns what a trial uses if it is run to its end; None where that is unknown."""
        return None
