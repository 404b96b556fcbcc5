"""Displays, with prints of several threads."""

import io
import threading
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paxtune.terminal.displays import SharedConsole, TerminalDisplay
from tests.servers.terminal import final_lines


class Line:
    """A line in whose first rendering another thread acts, unless it has to wait."""

    def __init__(self, text: str, act: Callable[[], None]) -> None:
        self.text, self.other = text, threading.Thread(target=act)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.other.ident is None:
            self.other.start()
            self.other.join(0.2)
        yield Text(self.text)


def test_a_screen_of_another_thread_leaves_nothing_behind() -> None:
    out = io.StringIO()
    console = SharedConsole(file=out, force_terminal=True, width=40, height=10, highlight=False)
    display = TerminalDisplay(console)
    display.open()
    line = Line('a line that stays', lambda: display.draw(Text('first line\nsecond line')))
    console.print(line)
    line.other.join()
    display.close()
    assert final_lines(out.getvalue()) == ['a line that stays']
