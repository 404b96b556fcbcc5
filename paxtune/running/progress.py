"""Progress of a search: a live table in a terminal, plain lines elsewhere."""

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from paxtune.algorithms import Default
from paxtune.running.callbacks import Callback
from trainer.runtime.directory import short_names

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_SHOWN_TRIALS = 20

Rewards = tuple[float, ...]


@dataclasses.dataclass
class Row:
    """A trial as it is shown.

    Attributes:
        number: of the trial.
        decisions: of the trial, by short names.
        state: 'running', 'paused', 'completed', 'stopped' or 'infeasible'.
        step: of the last measurement.
        rewards: those of that measurement.
    """

    number: int
    decisions: str
    state: str = 'running'
    step: int = 0
    rewards: Rewards = ()


class Progress(Callback):
    """Shows the trials of a study as they run.

    Attributes:
        reward_names: what the rewards are of.
        num_trials: the study's total.
    """

    def __init__(self, console: Console | None = None):
        self.reward_names: Sequence[str] = ['reward']
        self.num_trials = 0
        self._console = console or Console(highlight=False)
        self._rows: dict[int, Row] = {}
        self._best: tuple[int, Rewards] | None = None
        self._replicates = ''
        self._done_before = 0
        self._started = time.monotonic()
        self._live = (
            Live(get_renderable=self._table, console=self._console, refresh_per_second=4)
            if self._console.is_terminal
            else None
        )

    def on_study_start(self, study: 'Study') -> None:
        self.reward_names = [reward.label for reward in study.rewards]
        self.num_trials = study.num_trials
        if self._live is not None:
            self._live.start()
        chooses = study.search.algorithm
        if isinstance(chooses, Default):
            name = type(study.suggester.algorithm).__name__
            why = chooses.why(study.space.spec, len(study.rewards))
            self.say(f'algorithm: {name} (default for {why})')
        done = sum(trial.is_terminal for trial in study.trials)
        self.already_done(done, self._best_of(study))

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self.start(trial.id, trial.decisions, trial.lineage.replicate)

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        self.resume(trial.id, step)

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self.pause(trial.id, reason)

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self.say(f'trial {trial.id}: {reason}')

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        self.measure(trial.id, measurement.step, measurement.rewards)

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self.end(trial.id, trial.status, trial.reason or '', self._best_of(study))

    def on_study_end(self, study: 'Study') -> None:
        if self._live is not None:
            self._live.stop()

    def already_done(self, count: int, best: tuple[int, Rewards] | None) -> None:
        """Prints the count of earlier trials, and (number, rewards) of the best of them."""
        self._done_before, self._best = count, best
        if count:
            self.say(f'{count} of {self.num_trials} trials are done')

    def start(self, number: int, decisions: dict[str, Any], repeat: int = 1) -> None:
        """A trial begins."""
        names = zip(short_names(list(decisions)), decisions.values(), strict=True)
        rendered = ' '.join(f'{name}={_short(value)}' for name, value in names)
        rendered += f' (repeat {repeat})' if repeat > 1 else ''
        self._rows[number] = Row(number, rendered)
        self._say_plain(f'trial {number}/{self.num_trials}: {rendered}')

    def resume(self, number: int, step: int) -> None:
        """A trial goes on from a checkpoint."""
        self._rows[number].step = step
        self.say(f'trial {number}: resumed from step {step}')

    def measure(self, number: int, step: int, rewards: Rewards) -> None:
        """A trial has been evaluated."""
        row = self._rows[number]
        row.step, row.rewards = step, rewards
        self._say_plain(f'trial {number}: step {step} {self._rendered(rewards)}')

    def pause(self, number: int, reason: str) -> None:
        """A trial is put aside."""
        self._rows[number].state = 'paused'
        self._say_plain(f'trial {number}: paused ({reason})')

    def end(self, number: int, state: str, reason: str, best: tuple[int, Rewards] | None) -> None:
        """A trial is over; `best` is (number, rewards) of the study's best so far."""
        # It may have been paused before this process began.
        row = self._rows.setdefault(number, Row(number, ''))
        row.state, self._best = state, best
        text = f'trial {number}: {state}' + (f' ({reason})' if reason else '')
        if best is not None:
            text += f'; best is trial {best[0]} with {self._rendered(best[1])}{self._replicates}'
        self._say_plain(f'{text}; {self._time_left()}')

    def say(self, text: str) -> None:
        """Prints a line, above the table where there is one."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _say_plain(self, text: str) -> None:
        if self._live is None:
            self.say(text)

    def _copied(self) -> list[Row]:
        # The table is drawn in a thread of rich's, while trials begin in this one.
        return list(self._rows.values())

    def _ended(self) -> int:
        return sum(row.state not in ('running', 'paused') for row in self._copied())

    def _time_left(self) -> str:
        ended = self._ended()
        left = self.num_trials - self._done_before - ended
        if left <= 0:
            return 'all trials are done'
        if not ended:
            return f'{left} trials left'
        seconds = (time.monotonic() - self._started) / ended * left
        return (
            f'about {seconds / 60:.0f} min left' if seconds > 90 else f'about {seconds:.0f} s left'
        )

    def _table(self) -> Table:
        done = self._done_before + self._ended()
        title = f'{done} of {self.num_trials} trials, {self._time_left()}'
        table = Table(title=title, title_justify='left', expand=False)
        for heading in ('trial', 'state', 'step', *self.reward_names, 'decisions'):
            table.add_column(heading, overflow='ellipsis', no_wrap=True)
        for row in self._copied()[-_SHOWN_TRIALS:]:
            style = 'bold green' if self._best and self._best[0] == row.number else ''
            rewards = [f'{reward:.5g}' for reward in row.rewards]
            rewards += [''] * (len(self.reward_names) - len(rewards))
            cells = [str(row.number), row.state, str(row.step), *rewards, row.decisions]
            table.add_row(*cells, style=style)
        if self._best is not None:
            table.caption = (
                f'best: trial {self._best[0]}, {self._rendered(self._best[1])}{self._replicates}'
            )
        return table

    def _best_of(self, study: 'Study') -> tuple[int, Rewards] | None:
        """The best trial, and the mean of its repeats, how sure that is being noted."""
        found = study.leaderboard[:1] if len(study.rewards) == 1 else []
        for best in found:
            count, error = len(best.trials), best.standard_errors[0]
            self._replicates = (
                '' if error is None else f' ± {error:.2g}, the mean of {count} trials'
            )
            return best.trial.id, best.rewards
        return None

    def _rendered(self, rewards: Rewards) -> str:
        if not rewards:
            return '(no reward yet)'
        named = zip(self.reward_names, rewards, strict=True)
        return ', '.join(f'{name}={reward:.5g}' for name, reward in named)


def _short(value: Any) -> str:
    return f'{value:.3g}' if isinstance(value, float) else str(value)
