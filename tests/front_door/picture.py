"""The picture of a search in a terminal, for the README.

    python -m tests.front_door.picture --write

runs a search of the README in a terminal, and draws a moment of it. `--check` runs it again, and
prints the words of the picture that a search no longer writes.
"""

import argparse
import html
import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.documents import ROOT, blocks
from tests.front_door import terminal

PICTURE = ROOT / 'docs' / 'images' / 'search.svg'
MODULE = 'my_lm'
FLAGS = ('search', f'--exp={MODULE}.Tiny', '--num_trials=12', '--workers=2')
"""The command after `paxtune`, as it stands in the README."""

SHORTER = ('--num_trials=4',)
"""A search that writes the same words."""

MOMENT = re.compile(
    r'^[89] of 12 trials.*^best: .*^\d+ +40 .* running .*^\d+ +[24]0 .* running ', re.M | re.S
)
"""The screen to draw: some trials have ended, and two run."""

_FRAME = re.compile(r'(?=\r\x1b\[2K)')
_FONT = re.compile(r'@font-face \{.*?\}\s*', re.DOTALL)
_WORD = re.compile(r'[a-z]{4,}')


class Screen(terminal.Screen):
    """The lines of a terminal with their colours, as ANSI codes."""

    def write(self, text: str) -> None:
        for part in terminal.PART.finditer(text):
            if part[2] == 'm' or (part[2] is None and part[0] >= ' '):
                self.lines[self._row] += part[0]
            else:
                super().write(part[0])


def recorded(directory: Path, *flags: str) -> str:
    """Runs the search, with more flags; returns all that it wrote, with control codes."""
    readme = (ROOT / 'README.md').read_text()
    (source,) = [block.text for block in blocks(readme) if 'def Tiny' in block.text]
    (directory / f'{MODULE}.py').write_text(source)
    return terminal.run(directory, '-m', 'paxtune', *FLAGS, *flags).passed().raw


def moment(raw: str) -> list[str]:
    """Returns the lines on the screen at the last moment that is worth a picture, with their codes.

    Raises:
        ValueError: there is no such moment.
    """
    screen, found = Screen(), None
    for frame in _FRAME.split(raw):
        screen.write(frame)
        shown = '\n'.join(screen.lines[-terminal.LINES + 1 :])
        if MOMENT.search(Text.from_ansi(shown).plain):
            found = shown
    if found is None:
        raise ValueError('no moment of the search is worth a picture')
    return found.splitlines()


def drawn(lines: list[str]) -> str:
    """Returns an SVG of lines with ANSI codes, below their command. It loads no font."""
    console = Console(
        record=True,
        width=terminal.COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        legacy_windows=False,
    )
    console.print(Text.assemble(('$ ', 'green'), (' '.join(['paxtune', *FLAGS]), 'bold')))
    console.print(Text.from_ansi('\n'.join(lines)))
    return _FONT.sub('', console.export_svg(title='paxtune', unique_id='search'))


def words(text: str) -> set[str]:
    """Returns the words of a text, in small letters.

    Example:
        >>> sorted(words('Best trial: 7, loss=0.25'))
        ['best', 'loss', 'trial']
    """
    return {*_WORD.findall(text.lower())}


def shown(picture: str) -> list[str]:
    """Returns the lines of text in a picture."""
    lines: dict[str, str] = {}
    for line, text in re.findall(
        r'<text class="search-r\d+"[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', picture
    ):
        lines[line] = lines.get(line, '') + html.unescape(text).replace('\xa0', ' ')
    return [each.rstrip() for each in lines.values()]


def gone(picture: str, raw: str) -> set[str]:
    """Returns the words of a picture that a search no longer writes."""
    return words(' '.join(shown(picture)[1:])) - words(terminal.CODE.sub('', raw))


def main() -> int:
    """Draws the picture again, or checks it."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = flags.add_mutually_exclusive_group(required=True)
    action.add_argument('--write', action='store_true', help='draw it again')
    action.add_argument('--check', action='store_true', help='exit with 1 if it is out of date')
    writes = flags.parse_args().write
    with tempfile.TemporaryDirectory() as directory:
        raw = recorded(Path(directory), *(() if writes else SHORTER))
    if writes:
        PICTURE.write_text(drawn(moment(raw)))
        return 0
    print(*sorted(missing := gone(PICTURE.read_text(), raw)), sep='\n')
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
