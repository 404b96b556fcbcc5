"""Progress of a search: a screen in a terminal and in a notebook, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from paxtune.algorithms import Default
from paxtune.analysis.study_poller import StudyPoller
from paxtune.reports.profiles import profile_of, since
from paxtune.reports.tables import assignments
from paxtune.running.callbacks import Callback
from paxtune.study.columns import reward_headings
from paxtune.study.default_scheduler import default_scheduler
from paxtune.study.record import Status
from paxtune.terminal.displays import display_for, standard_console
from paxtune.terminal.live_screen import Labels, error_text
from paxtune.terminal.live_view import LiveView
from trainer.command import counted, printable
from trainer.runtime.interrupt import Interrupt
from trainer.runtime.run_display import rendered_speed, rendered_time
from trainer.runtime.wall_clock import Profile, profile_text

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_PLAIN_SECONDS = 10.0
_EACH = 100  # Trials that have a line each.


class Progress(Callback):
    """Shows the trials of a study as they run.

    In a terminal and in a notebook that is a screen, which a thread draws from the study. An error
    of the screen ends only the screen: lines follow.

    Attributes:
        profile: the wall clock of a search that has ended, on one line; '' before, and for none.
    """

    def __init__(
        self,
        console: Console | None = None,
        interrupt: Interrupt | None = None,
        *,
        ends_with_profile: bool = True,
    ) -> None:
        """Prepares a display.

        Args:
            console: where progress is shown; standard output by default.
            interrupt: a screen says that it was requested.
            ends_with_profile: `profile` is the last line; without, the caller prints it.
        """
        self.profile = ''
        self._ends_with_profile = ends_with_profile
        self.reward_names: Sequence[str] = ['reward']
        self.num_trials: int | None = None
        self._console = console or standard_console()
        self._names: dict[str, str] = {}
        self._metrics: dict[int, dict[str, float]] = {}
        self.num_ended = 0
        self._done_before = 0
        self._started = self._printed = time.monotonic()
        self._interrupt = interrupt or Interrupt()
        self._poller: StudyPoller | None = None
        self._view: LiveView | None = None
        self._profile_before: Profile = {}

    def begin(self, study: 'Study') -> None:
        """Notes the names of a study, and how many of its trials are done."""
        self.reward_names = reward_headings(study.rewards)
        self._names = dict(study.space.short_names)
        self.num_trials = study.num_trials
        self._done_before = sum(trial.is_terminal for trial in study.trials)

    def on_study_start(self, study: 'Study') -> None:
        self.begin(study)
        self._profile_before = profile_of(study)
        self._show(study)
        chooses = study.search.algorithm
        if isinstance(chooses, Default):
            name = type(study.suggester.algorithm).__name__
            why = chooses.why(study.space.spec, len(study.rewards))
            self.say(f'algorithm: {name} (default for {why})')
        if study.search.scheduler == 'default' and study.scheduler is not None:
            _, why = default_scheduler(study.search, study.space)
            self.say(
                f'scheduler: {type(study.scheduler).__name__} (default for {why}); '
                '--scheduler=none trains all to their ends'
            )
        if self._done_before:
            whole = self.num_trials or self._done_before
            verb = 'is' if whole == 1 else 'are'
            self.say(f'{self._done_before} of {counted(whole, "trial")} {verb} done')

    def _show(self, study: 'Study') -> None:
        """Starts a screen, where there is a place for one."""
        if (display := display_for(self._console)) is None:
            return
        self._poller = StudyPoller.of(study)
        labels = Labels(str(study.directory or ''), self.reward_names, self._decisions)
        self._view = LiveView(self._poller.poll, display, labels, notice=self._notice)
        self._view.start()
        self._interrupt.is_displayed = self._is_live

    def _notice(self) -> str:
        return self._interrupt.MESSAGE if self._interrupt.requested() else ''

    @property
    def _is_live(self) -> bool:
        return self._view is not None and self._view.is_shown

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._metrics[trial.id] = {}
        self._say_plain(self._begin(trial))

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        self.say(f'trial {trial.id}: resumed from step {step}')

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._say_plain(f'trial {trial.id}: paused ({reason})')

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self.say(f'trial {trial.id}: {reason}')

    def on_step(
        self, study: 'Study', trial: 'Trial', step: int, metrics: Mapping[str, float]
    ) -> None:
        if self._poller is not None:
            self._poller.note_step(trial.id, step, metrics)
        known = self._metrics.setdefault(trial.id, {})
        known.update(metrics)
        if time.monotonic() - self._printed > _PLAIN_SECONDS:
            self._printed = time.monotonic()
            speed = ' '.join(rendered_speed(known))
            self._say_plain(f'trial {trial.id}: step {step} {speed or "is done"}')

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        step, rewards = measurement.step, measurement.rewards
        self._say_plain(f'trial {trial.id}: step {step} {self._rendered(rewards)}')

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self._metrics.pop(trial.id, None)
        self.num_ended += 1
        if not self._is_live:
            self.say(self.ended_text(study, trial))

    def ended_text(self, study: 'Study', trial: 'Trial') -> str:
        """Renders the end of a trial, the best one so far, and the time that is left."""
        return f'trial {trial.id}: {self._end(trial)}{self._standing(study)}'

    def result_text(self, study: 'Study', trial: 'Trial') -> str:
        """Renders the same with the decisions and the reward, for lines that begin no trial."""
        has_result = trial.status is Status.COMPLETED and trial.rewards
        end = self._rendered(trial.rewards) if has_result else self._end(trial)
        return f'{self._begin(trial)} → {end}{self._standing(study)}'

    def _end(self, trial: 'Trial') -> str:
        return f'{trial.status}' + (f' ({trial.reason})' if trial.reason else '')

    def _standing(self, study: 'Study') -> str:
        text = ''
        if len(study.rewards) == 1 and (found := study.winners(1)):
            best = found[0]
            rewards = self._rendered(best.rewards) + error_text(best)
            text = f'; best is trial {best.trial.id} with {rewards}'
        return f'{text}; {self._time_left()}' if self.num_trials else text

    def on_study_end(self, study: 'Study') -> None:
        if self._view is not None:
            self._view.stop()
        self._interrupt.is_displayed = False
        profile = since(study, self._profile_before)
        self.profile = profile_text(profile, 'Wall clock of this search')
        if self.profile and self._ends_with_profile:
            self.say(self.profile)

    def say(self, text: str) -> None:
        """Prints a line, above the screen where there is one."""
        if self._view is None or not self._view.say(text):
            folds = self._console.is_terminal  # A terminal alone would fold inside of words.
            self._console.print(printable(text), markup=False, soft_wrap=not folds)

    def _say_plain(self, text: str) -> None:
        if not self._is_live:
            self.say(text)

    def _time_left(self) -> str:
        left = (self.num_trials or 0) - self._done_before - self.num_ended
        if left <= 0:
            return 'all trials are done'
        seconds = (time.monotonic() - self._started) / self.num_ended * left
        return rendered_time(seconds)

    def _begin(self, trial: 'Trial') -> str:
        total = f'/{self.num_trials}' if self.num_trials else ''
        return f'trial {trial.id}{total}: {self._decisions(trial)}'

    def _decisions(self, trial: 'Trial') -> str:
        replicate = trial.lineage.replicate
        text = assignments(trial.decisions, self._names)
        return text + (f' (replicate {replicate})' if replicate > 1 else '')

    def _rendered(self, rewards: Sequence[float]) -> str:
        if not rewards:
            return '(no reward yet)'
        named = zip(self.reward_names, rewards, strict=True)
        return ', '.join(f'{name}={reward:.5g}' for name, reward in named)


class Lines(Callback):
    """Shows the trials that end as lines on standard error.

    Each of the first hundred trials has one. Later lines are at least some seconds apart.
    """

    def __init__(self, console: Console | None = None, seconds: float = _PLAIN_SECONDS) -> None:
        """Prepares the lines; `seconds` is the least time between later ones."""
        self._progress = Progress(console or Console(stderr=True, highlight=False))
        self._seconds = seconds
        self._printed = time.monotonic()
        self._held: Trial | None = None

    def on_study_start(self, study: 'Study') -> None:
        self._progress.begin(study)

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self._held = trial
        self._progress.num_ended += 1
        is_early = self._progress.num_ended <= _EACH
        if is_early or time.monotonic() - self._printed >= self._seconds:
            self._print(study)

    def on_study_end(self, study: 'Study') -> None:
        self._print(study)

    def _print(self, study: 'Study') -> None:
        if self._held is not None:
            self._progress.say(self._progress.result_text(study, self._held))
        self._held, self._printed = None, time.monotonic()
