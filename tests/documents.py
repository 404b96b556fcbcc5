"""Reads the code, the commands and the links of documents, and checks them."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from absl.flags import argparse_flags

from paxtune.__main__ import COMMANDS
from trainer.command import module_of

ROOT = Path(__file__).parents[1]

_MODULES = (
    'paxtune.scale',
    'paxtune.supernet',
    'paxtune.search',
    'paxtune.serve',
    'paxtune.simulate',
    'paxtune.space',
    'paxtune.studies',
    'paxtune.train',
    'trainer.convert',
    'trainer.inspect',
    'trainer.inspect_input',
    'trainer.main',
)


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line it begins in."""

    language: str
    text: str
    line: int


class Parsed(BaseException):
    """Raised instead of running a command, with its parsed flags and the rest."""

    def __init__(self, flags: argparse.Namespace, rest: list[str]) -> None:
        super().__init__()
        self.flags, self.rest = flags, rest


def blocks(document: str) -> list[Block]:
    """Returns the fenced blocks of a document."""
    found = re.finditer(r'^```(\w+)\n(.*?)^```$', document, re.DOTALL | re.MULTILINE)
    return [Block(m[1], m[2], document[: m.start()].count('\n') + 2) for m in found]


def commands(text: str) -> list[list[str]]:
    """Splits the commands of a shell block into words."""
    lines = text.replace('\\\n', ' ').splitlines()
    # The flags end where a command's output goes elsewhere.
    return [shlex.split(line.partition(' > ')[0], comments=True) for line in lines if line.strip()]


def commands_of(document: str) -> list[list[str]]:
    """Returns all commands of a document; `paxtune search` as `python -m paxtune.search`."""
    found = [each for b in blocks(document) if b.language == 'sh' for each in commands(b.text)]
    return [
        ['python', '-m', f'paxtune.{words[1]}', *words[2:]]
        if words[0] == 'paxtune' and words[1] in COMMANDS
        else words
        for words in found
    ]


def dead_links(path: Path) -> list[str]:
    """Returns the links of a document without a target."""
    found = []
    for link in links(path.read_text()):
        name, _, anchor = link.partition('#')
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def parsed(command: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Parses the flags of one of the package's commands, which must know them all; runs nothing."""
    python, m, module, *flags = command
    assert (python, m) == ('python', '-m')
    assert module in _MODULES
    read = argparse_flags.ArgumentParser.parse_known_args
    depth = 0

    def stop(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        # A parser that has commands calls the parser of a command.
        nonlocal depth
        depth += 1
        found, rest = read(parser, args, namespace)
        depth -= 1
        if depth:
            return found, rest
        raise Parsed(found, rest)

    with monkeypatch.context() as patch:
        patch.setattr(argparse_flags.ArgumentParser, 'parse_known_args', stop)
        with pytest.raises(Parsed) as caught:
            module_of(module).main(flags)
    assert not caught.value.rest
    return caught.value.flags


def links(document: str) -> Iterator[str]:
    """Yields the links of a document, except those to the web."""
    for target in re.findall(r'\]\(([^)]+)\)', document):
        if '://' not in target:
            yield target


def anchors(document: str) -> set[str]:
    """Returns the anchors of a document: its headings, as GitHub writes them."""
    headings = re.findall(r'^#+ (.*)$', document, re.MULTILINE)
    kept = (re.sub(r'[^\w\- ]', '', heading.lower()) for heading in headings)
    return {heading.replace(' ', '-') for heading in kept}


_TESTED = {
    'tests/test_architecture_search.py': ['docs/architecture-search.md'],
    'tests/test_dependencies.py': ['docs/dependencies.md'],
    'tests/test_extending.py': ['docs/extending/*.md'],
    'tests/test_fine_tuning.py': ['docs/fine-tuning.md'],
    'tests/test_guide.py': ['docs/tuning/*.md', 'docs/distributed.md'],
    'tests/test_performance.py': ['docs/performance.md'],
    'tests/test_readme.py': ['README.md'],
    'tests/test_repository.py': ['CONTRIBUTING.md'],
    'tests/test_training.py': ['docs/training.md'],
    'tests/test_tutorials.py': [
        'docs/how-a-search-works.md',
        'docs/quick-start.md',
        'docs/tutorials/*.md',
    ],
}


def pages_of(test: str) -> list[Path]:
    """Returns the pages whose code a test module runs; it takes them from here."""
    name = Path(test).relative_to(ROOT).as_posix()
    return sorted(path for pattern in _TESTED[name] for path in ROOT.glob(pattern))


def modules_testing(page: Path) -> list[Path]:
    """Returns the test modules that run the code of a page."""
    return [ROOT / test for test in _TESTED if page in pages_of(str(ROOT / test))]
