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
    """A trial in the table, with its decisions by short names and its last measurement."""

    number: int
    decisions: str
    state: str = 'running'
    step: int = 0
    rewards: Rewards = ()


class Progress(Callback):
    """Shows the trials of a study as they run."""

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
        self._done_before = sum(trial.is_terminal for trial in study.trials)
        self._best = self._best_of(study)
        if self._done_before:
            self.say(f'{self._done_before} of {self.num_trials} trials are done')

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        names = zip(short_names(list(trial.decisions)), trial.decisions.values(), strict=True)
        rendered = ' '.join(f'{name}={_short(value)}' for name, value in names)
        replicate = trial.lineage.replicate
        rendered += f' (repeat {replicate})' if replicate > 1 else ''
        self._rows[trial.id] = Row(trial.id, rendered)
        self._say_plain(f'trial {trial.id}/{self.num_trials}: {rendered}')

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        self._rows[trial.id].step = step
        self.say(f'trial {trial.id}: resumed from step {step}')

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._rows[trial.id].state = 'paused'
        self._say_plain(f'trial {trial.id}: paused ({reason})')

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self.say(f'trial {trial.id}: {reason}')

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        row, rewards = self._rows[trial.id], measurement.rewards
        row.step, row.rewards = measurement.step, rewards
        self._say_plain(f'trial {trial.id}: step {row.step} {self._rendered(rewards)}')

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        # It may have been paused before this process began.
        row = self._rows.setdefault(trial.id, Row(trial.id, ''))
        row.state, self._best = trial.status, self._best_of(study)
        text = f'trial {trial.id}: {row.state}' + (f' ({trial.reason})' if trial.reason else '')
        if self._best is not None:
            number, rewards = self._best
            text += f'; best is trial {number} with {self._rendered(rewards)}{self._replicates}'
        self._say_plain(f'{text}; {self._time_left()}')

    def on_study_end(self, study: 'Study') -> None:
        if self._live is not None:
            self._live.stop()

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
            number, best = self._best
            table.caption = f'best: trial {number}, {self._rendered(best)}{self._replicates}'
        return table

    def _best_of(self, study: 'Study') -> tuple[int, Rewards] | None:
        """Returns the best trial and the mean of its replicates; notes the error of the mean."""
        found = study.leaderboard if len(study.rewards) == 1 else []
        if not found:
            return None
        best, count, error = found[0], len(found[0].trials), found[0].standard_errors[0]
        self._replicates = '' if error is None else f' ± {error:.2g}, the mean of {count} trials'
        return best.trial.id, best.rewards

    def _rendered(self, rewards: Rewards) -> str:
        if not rewards:
            return '(no reward yet)'
        named = zip(self.reward_names, rewards, strict=True)
        return ', '.join(f'{name}={reward:.5g}' for name, reward in named)


def _short(value: Any) -> str:
    return f'{value:.3g}' if isinstance(value, float) else str(value)
