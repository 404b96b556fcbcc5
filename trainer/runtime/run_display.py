"""Progress of one run for people: a changing line in a terminal, now and then a line elsewhere."""

import contextlib
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainer.runtime.interrupt import Interrupt
from trainer.runtime.step_events import listening


class RunDisplay:
    """Context manager that shows the steps of the run of this thread, and a requested interrupt."""

    def __init__(
        self,
        num_steps: int,
        interrupt: Interrupt,
        console: Console | None = None,
        plain_seconds: float = 10.0,
    ) -> None:
        """Prepares a display, which prints a line every `plain_seconds` outside of a terminal."""
        self._num_steps, self._interrupt = num_steps, interrupt
        self._plain_seconds = plain_seconds
        self._console = console or Console(highlight=False)
        self._step, self._metrics = 0, dict[str, float]()
        self._printed = time.monotonic()
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(listening(self._note))
        if self._console.is_terminal:
            self._interrupt.is_displayed = True
            line = Live(get_renderable=self._line, console=self._console, refresh_per_second=4)
            self._held.enter_context(line)
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()
        self._interrupt.is_displayed = False

    def _note(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = max(step, self._step)
        self._metrics |= metrics
        is_due = time.monotonic() - self._printed > self._plain_seconds
        if is_due and not self._console.is_terminal:
            self._printed = time.monotonic()
            self._console.print(self._line())

    def _line(self) -> Text:
        parts = ['compiling …']
        if self._step:
            step = f'step {self._step} of {self._num_steps}'
            parts = [step, *rendered_speed(self._metrics)]
        if speed := self._metrics.get('train/steps_per_second'):
            parts.append(rendered_time((self._num_steps - self._step) / speed))
        asked = self._console.is_terminal and self._interrupt.requested()
        return Text(', '.join(parts) + (f'\n{self._interrupt.MESSAGE}' if asked else ''))


def rendered_speed(metrics: Mapping[str, float]) -> list[str]:
    """Renders the loss and the speed of training, if known.

    Example:
        >>> rendered_speed({'train/loss': 2.5, 'train/steps_per_second': 12.34})
        ['train/loss=2.5', '12.3 steps/s']
    """
    formats = {'train/loss': 'train/loss={:.5g}', 'train/steps_per_second': '{:.3g} steps/s'}
    return [text.format(metrics[name]) for name, text in formats.items() if name in metrics]


def rendered_time(seconds: float) -> str:
    """Renders the time that is left.

    Example:
        >>> rendered_time(200.0)
        'about 3 min left'
    """
    return f'about {seconds / 60:.0f} min left' if seconds > 90 else f'about {seconds:.0f} s left'
