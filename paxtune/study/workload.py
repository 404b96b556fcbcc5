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
        """Fingerprints of the data of the trials, by name: they stay the same for a study."""
        return {}

    def max_resource(
        self, space: Space, trials: Sequence[Trial], trial: Trial, unit: Unit
    ) -> float | None:
        """Returns the resources of a trial that runs to its end; None if unknown."""
        return None
