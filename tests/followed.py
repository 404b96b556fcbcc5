"""Follows a page as its reader does: writes its files, runs its commands, compares the output.

A ```python block is the file that the text before it names. All ```sh blocks are one session of a
shell. Commands that train get `--smoke`. A ```text block has lines of the output of the commands
before it, in their order. Numbers may differ, and `…` stands for any text. A ```console block has
what a trained model wrote, so that only its presence is checked.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.documents import Block, blocks
from tests.servers.processes import environment
from tools.servers.ports import unused_port

SECONDS = 500
"""A page takes less than a minute on an idle machine."""

_FILE = re.compile(r'\bfile\s+`(\w+\.py)`')
_TRAINS = re.compile(r'(python -m (?:paxtune\.search|trainer\.main)|paxtune search)\b')
_NUMBER = re.compile(r'-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?')
_PORT = '8470'
_OUTPUT = 'page.out'


class Followed(NamedTuple):
    """The blocks of a page, and the output of each shell block by its line."""

    blocks: list[Block]
    printed: dict[int, str]


def files_of(page: str) -> dict[str, str]:
    """Returns the files that a page has its reader write, by name."""
    found: dict[str, str] = {}
    end = 0
    lines = page.splitlines(keepends=True)
    for block in blocks(page):
        before = ''.join(lines[end : block.line - 1])
        end = block.line + block.text.count('\n')
        if block.language == 'python':
            names = _FILE.findall(before)
            assert len(names) == 1, f'line {block.line}: the text before names {names}'
            assert names[0] not in found, f'line {block.line}: {names[0]} again'
            found[names[0]] = block.text
    return found


def follow(page: str, directory: Path) -> Followed:
    """Follows a page in an empty directory; raises AssertionError where a command fails."""
    for name, text in files_of(page).items():
        (directory / name).write_text(text)
    found = blocks(page)
    shells = [block for block in found if block.language == 'sh']
    parts = [f'{_smoked(block.text)}\necho "<<{block.line}>>"\n' for block in shells]
    script = f'set -e -o pipefail\n{"".join(parts)}'.replace(_PORT, str(unused_port()))
    (directory / 'page.sh').write_text(script)
    with _session(directory) as process:
        process.wait(SECONDS)
    # What the page leaves running, such as a service, is gone here.
    output = (directory / _OUTPUT).read_text()
    assert process.returncode == 0, output
    pieces = re.split(r'^<<(\d+)>>\n', output, flags=re.MULTILINE)
    return Followed(found, dict(zip(map(int, pieces[1::2]), pieces[::2], strict=False)))


def differences(followed: Followed) -> Iterator[str]:
    """Yields the lines of the page that the commands before them did not print, in this order."""
    left: list[str] = []
    for block in followed.blocks:
        if block.language == 'sh':
            left = followed.printed[block.line].splitlines()
        elif block.language == 'text':
            for number, line in enumerate(block.text.splitlines(), block.line):
                if line == '…':  # Any number of lines, also none.
                    continue
                wanted = pattern(line)
                at = next((i for i, each in enumerate(left) if wanted.fullmatch(each)), None)
                if at is None:
                    yield f'line {number}: {line}'
                else:
                    del left[: at + 1]
        elif block.language == 'console' and not left:
            yield f'line {block.line}: nothing is printed'


def pattern(line: str) -> re.Pattern[str]:
    """Returns the pattern of a printed line: other numbers, other widths, any text for `…`."""
    parts = [
        r'\s+'.join(
            _NUMBER.pattern.join(map(re.escape, _NUMBER.split(word))) for word in part.split(' ')
        )
        for part in re.sub(' +', ' ', line.rstrip()).split('…')
    ]
    return re.compile('.*'.join(parts) + r'\s*')


def _smoked(text: str) -> str:
    return _TRAINS.sub(r'\1 --smoke', text)


@contextlib.contextmanager
def _session(directory: Path) -> Iterator['subprocess.Popen[str]']:
    """A shell that runs the page; what it leaves behind is killed."""
    path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
    with (directory / _OUTPUT).open('w') as output:
        process = subprocess.Popen(
            ['bash', 'page.sh'],
            # The best trial of a page depends on the last bits.
            env={**environment(), 'PATH': path, 'XDG_STATE_HOME': str(directory / 'state')},
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
