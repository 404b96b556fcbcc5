"""What a search shows: a live table in a terminal, plain lines anywhere else."""

import dataclasses
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from trainer.directory import short_names

_SHOWN_TRIALS = 20


@dataclasses.dataclass
class Row:
    """A trial as it is shown.

    Attributes:
        number: of the trial.
        decisions: of the trial, by short names.
        state: 'running', 'completed', 'stopped' or 'infeasible'.
        step: of the last measurement.
        metric: the reward's metric there.
    """

    number: int
    decisions: str
    state: str = 'running'
    step: int = 0
    metric: float | None = None


class Progress:
    """Shows the trials of a study as they run.

    Use as a context manager; the table is live inside.

    Attributes:
        metric_name: the metric that is the reward.
        num_trials: the study's total.
    """

    def __init__(self, metric_name: str, num_trials: int, console: Console | None = None):
        self.metric_name, self.num_trials = metric_name, num_trials
        self._console = console or Console(highlight=False)
        self._rows: dict[int, Row] = {}
        self._best: tuple[int, float] | None = None
        self._done_before = 0
        self._started = time.monotonic()
        self._live = (
            Live(get_renderable=self._table, console=self._console, refresh_per_second=4)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> 'Progress':
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def already_done(self, count: int, best: tuple[int, float] | None) -> None:
        """Tells of the trials that were done before, and (number, metric) of the best of them."""
        self._done_before, self._best = count, best
        if count:
            self.say(f'{count} of {self.num_trials} trials are done')

    def start(self, number: int, decisions: dict[str, Any]) -> None:
        """A trial begins."""
        names = zip(short_names(list(decisions)), decisions.values(), strict=True)
        shown = ' '.join(f'{name}={_short(value)}' for name, value in names)
        self._rows[number] = Row(number, shown)
        self._say_plain(f'trial {number}/{self.num_trials}: {shown}')

    def resume(self, number: int, step: int) -> None:
        """A trial goes on from a checkpoint."""
        self._rows[number].step = step
        self.say(f'trial {number}: resumed from step {step}')

    def measure(self, number: int, step: int, metric: float) -> None:
        """A trial has been evaluated."""
        row = self._rows[number]
        row.step, row.metric = step, metric
        self._say_plain(f'trial {number}: step {step} {self.metric_name}={metric:.5g}')

    def end(self, number: int, state: str, reason: str, best: tuple[int, float] | None) -> None:
        """A trial is over; `best` is (number, metric) of the study's best so far."""
        row = self._rows[number]
        row.state, self._best = state, best
        text = f'trial {number}: {state}' + (f' ({reason})' if reason else '')
        if best is not None:
            text += f'; best is trial {best[0]} with {self.metric_name}={best[1]:.5g}'
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
        return sum(row.state != 'running' for row in self._copied())

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
        for heading in ('trial', 'state', 'step', self.metric_name, 'decisions'):
            table.add_column(heading, overflow='ellipsis', no_wrap=True)
        for row in self._copied()[-_SHOWN_TRIALS:]:
            metric = '' if row.metric is None else f'{row.metric:.5g}'
            style = 'bold green' if self._best and self._best[0] == row.number else ''
            table.add_row(
                str(row.number), row.state, str(row.step), metric, row.decisions, style=style
            )
        if self._best is not None:
            table.caption = f'best: trial {self._best[0]}, {self.metric_name}={self._best[1]:.5g}'
        return table


def _short(value: Any) -> str:
    return f'{value:.3g}' if isinstance(value, float) else str(value)
