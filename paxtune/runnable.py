"""Values that say themselves what their trials do."""

from typing import TYPE_CHECKING

from paxtune.searching import Search
from trainer.component import Component

if TYPE_CHECKING:
    from paxtune.policies.base import Unit
    from paxtune.runners import Runner
    from paxtune.study import Study
    from paxtune.trial import Trial


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

    def budget(self, study: 'Study', trial: 'Trial', unit: 'Unit') -> float | None:
        """What a trial spends if it is run to its end, in a unit; None where nobody knows."""
        return None
