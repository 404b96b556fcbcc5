from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


class Callback:
    """Listens to a study. Subclasses override the methods of the events that they need.

    An error of a callback ends the search after the study has recorded the event: nothing is
    lost, and the same call resumes.

    Example:
        >>> class Best(Callback):
        ...     def on_trial_end(self, study, trial):
        ...         print(trial.id, trial.state, study.best)
    """

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'

    def on_study_start(self, study: 'Study') -> None:
        """The study is open, and its next trial not yet suggested."""

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        """A trial begins, or continues."""

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        """A trial continues from the checkpoint of a step."""

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        """A scheduler has put a trial aside, until it is promoted or the study ends."""

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        """The worker of a trial was lost; the trial is tried again, unless it has ended by that."""

    def on_step(
        self, study: 'Study', trial: 'Trial', step: int, metrics: 'Mapping[str, float]'
    ) -> None:
        """A trial has begun a step, or several that end with it.

        Metrics are of training, and of an earlier step, if any.
        """

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        """A trial has reported."""

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        """A trial is over: it is terminal now."""

    def on_study_end(self, study: 'Study') -> None:
        """The search stops, whether the study is done or not."""


class OnTrialEnd(Callback):
    """Calls a function with the study and the trial whenever a trial has ended."""

    def __init__(self, function: 'Callable[[Study, Trial], object]') -> None:
        self._function = function

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self._function(study, trial)
