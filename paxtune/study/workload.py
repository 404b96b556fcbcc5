"""Values that say themselves what their trials do."""

from typing import TYPE_CHECKING

from paxtune.config.search import Search
from trainer.symbolic.component import Component

if TYPE_CHECKING:
    from paxtune.running.runners import Runner
    from paxtune.schedulers.base import Unit
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


class Runnable(Component):
    """A value whose trials are no training of experiments.

    What runs them is found by the study alone, so that workers find it, too.

    Attributes:
        search: how its decisions are searched.
    """

    search: Search

    def runner(self) -> 'Runner':
        """What runs the trials."""
        raise NotImplementedError(type(self).__name__)

    def data(self) -> dict[str, str]:
        """Fingerprints of what the trials read, by name: a study does not go on with other data."""
        return {}

    def max_resource(self, study: 'Study', trial: 'Trial', unit: 'Unit') -> float | None:
        """The resource that a trial takes to its end, in a unit; None if unknown."""
        return None
