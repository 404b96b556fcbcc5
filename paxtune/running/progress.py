"""Progress of a search: a live table in a terminal, plain lines elsewhere."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from paxtune.algorithms import Default
from paxtune.reports.tables import Drawn, Table, assignments
from paxtune.running.callbacks import Callback
from paxtune.study.frames import reward_headings
from trainer.command import printable
from trainer.runtime.interrupt import Interrupt
from trainer.runtime.run_display import rendered_speed, rendered_time

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_SHOWN_TRIALS = 20
_OTHER_LINES = 8  # Of the table, those that are no trials.
_PLAIN_SECONDS = 10.0
_SPEED = ('train/loss', 'steps/s')
_OPEN = ('compiling', 'running', 'paused')

Rewards = tuple[float, ...]


@dataclasses.dataclass
class Row:
    """A trial in the table.

    Attributes:
        decisions: by path.
        step: the last one that has begun.
        rewards: of the last measurement.
        metrics: of training, since the last measurement.
    """

    number: int
    decisions: Mapping[str, Any]
    state: str = 'running'
    replicate: int = 1
    step: int = 0
    rewards: Rewards = ()
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)


class Progress(Callback):
    """Shows the trials of a study as they run."""

    def __init__(self, console: Console | None = None, interrupt: Interrupt | None = None):
        """Prepares a display; a live table also says that an interrupt was requested."""
        self.reward_names: Sequence[str] = ['reward']
        self.num_trials = 0
        self._console = console or Console(highlight=False)
        self._rows: dict[int, Row] = {}
        self._names: dict[str, str] = {}
        self._best: tuple[int, Rewards] | None = None
        self._replicates = ''
        self._done_before = 0
        self._started = self._printed = time.monotonic()
        self._interrupt = interrupt or Interrupt()
        self._is_live = self._console.is_terminal
        self._has_ended = False
        self._live: Live | None = None

    def on_study_start(self, study: 'Study') -> None:
        self.reward_names = reward_headings(study.rewards)
        self._names = {_key(path): name for path, name in study.space.short_names.items()}
        self.num_trials = study.num_trials
        self._done_before = sum(trial.is_terminal for trial in study.trials)
        self._best = self._best_of(study)
        if self._is_live:
            # Made here, since it draws the table at once.
            self._live = Live(get_renderable=self._table, console=self._console)
            self._live.start()
            self._interrupt.is_displayed = True
        chooses = study.search.algorithm
        if isinstance(chooses, Default):
            name = type(study.suggester.algorithm).__name__
            why = chooses.why(study.space.spec, len(study.rewards))
            self.say(f'algorithm: {name} (default for {why})')
        if self._done_before:
            self.say(f'{self._done_before} of {self.num_trials} trials are done')

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        decisions = {_key(path): value for path, value in trial.decisions.items()}
        replicate = trial.lineage.replicate
        state = 'compiling' if study.space.is_tunable else 'running'
        self._rows[trial.id] = Row(trial.id, decisions, state, replicate)
        rendered = assignments(decisions, self._names)
        rendered += f' (replicate {replicate})' if replicate > 1 else ''
        self._say_plain(f'trial {trial.id}/{self.num_trials}: {rendered}')

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        self._rows[trial.id].step = step
        self.say(f'trial {trial.id}: resumed from step {step}')

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._rows[trial.id].state = 'paused'
        self._say_plain(f'trial {trial.id}: paused ({reason})')

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self.say(f'trial {trial.id}: {reason}')

    def on_step(
        self, study: 'Study', trial: 'Trial', step: int, metrics: Mapping[str, float]
    ) -> None:
        row = self._rows[trial.id]
        row.state, row.step = 'running', max(step, row.step)
        row.metrics = {**row.metrics, **metrics}
        if time.monotonic() - self._printed > _PLAIN_SECONDS:
            self._printed = time.monotonic()
            speed = ' '.join(rendered_speed(row.metrics))
            self._say_plain(f'trial {trial.id}: step {row.step} {speed}'.rstrip())

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        row, rewards = self._rows[trial.id], measurement.rewards
        row.state, row.step, row.rewards = 'running', measurement.step, rewards
        self._say_plain(f'trial {trial.id}: step {row.step} {self._rendered(rewards)}')

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        # It may have been paused before this process began.
        row = self._rows.setdefault(trial.id, Row(trial.id, {}))
        row.state, self._best = trial.status, self._best_of(study)
        text = f'trial {trial.id}: {row.state}' + (f' ({trial.reason})' if trial.reason else '')
        if self._best is not None:
            number, rewards = self._best
            text += f'; best is trial {number} with {self._rendered(rewards)}{self._replicates}'
        self._say_plain(f'{text}; {self._time_left()}')

    def on_study_end(self, study: 'Study') -> None:
        for row in self._copied():
            if row.state in _OPEN:
                row.state = 'paused'
        self._has_ended = True
        self._interrupt.is_displayed = False
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line, above the table where there is one."""
        self._console.print(printable(text), markup=False, soft_wrap=not self._is_live)

    def _say_plain(self, text: str) -> None:
        if not self._is_live:
            self.say(text)

    def _copied(self) -> list[Row]:
        # The table is drawn in a thread of rich's, while trials begin in this one.
        return list(self._rows.values())

    def _ended(self) -> int:
        return sum(row.state not in _OPEN for row in self._copied())

    def _time_left(self) -> str:
        ended = self._ended()
        left = self.num_trials - self._done_before - ended
        if left <= 0:
            return 'all trials are done'
        if not ended or self._has_ended:
            return f'{left} trials left'
        seconds = (time.monotonic() - self._started) / ended * left
        return rendered_time(seconds)

    def _table(self) -> Drawn:
        done = self._done_before + self._ended()
        rows, marked = self._copied()[-_SHOWN_TRIALS:], None
        if self._best is not None:
            marked = next((i for i, row in enumerate(rows) if row.number == self._best[0]), None)
        lines = [
            {
                'trial': row.number,
                'state': row.state,
                'replicate': row.replicate if row.replicate > 1 else None,
                'step': row.step,
                **dict(zip(self.reward_names, (f'{r:.5g}' for r in row.rewards), strict=False)),
                'train/loss': row.metrics.get('train/loss'),
                'steps/s': row.metrics.get('train/steps_per_second'),
                **row.decisions,
            }
            for row in rows
        ]
        columns = ['trial', 'state', 'replicate', 'step', *self.reward_names, *_SPEED, 'decisions']
        table = Table.compact(lines, ['trial', 'decisions'], self._names)
        notes = [table.note] if table.note else []
        if self._best is not None:
            number, best = self._best
            notes.append(f'best: trial {number}, {self._rendered(best)}{self._replicates}')
        if self._interrupt.requested():
            notes.append(self._interrupt.MESSAGE)
        table = dataclasses.replace(
            table,
            columns=columns,
            title=f'{done} of {self.num_trials} trials, {self._time_left()}',
            note='\n'.join(notes),
        )
        return Drawn(table, marked, self._console.height - _OTHER_LINES)

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


def _key(path: str) -> str:
    return f'decisions.{path}'  # No other column has this name.
