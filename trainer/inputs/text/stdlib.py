"""The embedded corpus: the sources of Python's standard library.

It exists on every machine with this code, without a download. It is large and regular enough to
compare small language models.
"""

import dataclasses
import functools
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from trainer.inputs.text.windows import Corpus, WindowInput, corpus_of
from trainer.runtime.home import expanded
from trainer.symbolic.errors import UserError

MAX_BYTES = 8_000_000
"""Size of the corpus, train and eval together."""

MIN_BYTES = 1_000_000
"""A library with fewer bytes of source is considered stripped."""

EVAL_PART = 32
"""One byte in this many is for evaluation."""

_LEFT_OUT = ('test', 'tests', 'site-packages', 'dist-packages', 'idlelib', 'lib2to3')


class StdlibInput(WindowInput):
    """The standard library's `.py` files as a stream of bytes. See `WindowInput` for the batches.

    Tests, installed packages, idlelib, lib2to3, files that depend on the build, and links are left
    out. The corpus is the first 8 MB of the rest, in the order of the SHA-256 of the files'
    relative paths. In this order files go to the eval split until it has 1/32 of the bytes. All
    others, and files larger than a quarter of the eval split, go to train. So equal Python versions
    have equal corpora.

    Attributes:
        split: 'train' or 'eval'.
        path: the directory of the library, on a disk; '' for the running Python's.
        max_bytes: reads at most this many bytes of the split; 0 for all.
    """

    split: Literal['train', 'eval']
    path: str = ''
    max_bytes: int = 0

    def read(self) -> Corpus:
        root = Path(expanded(self.path or sysconfig.get_path('stdlib')))
        train, held_out = _read(root)
        if len(train.data) + len(held_out.data) < MIN_BYTES:
            paths = ' and '.join(self.settings('path'))
            raise UserError(
                f'{root} has {len(train.data) + len(held_out.data)} bytes of .py files, but the '
                f'embedded corpus needs {MIN_BYTES}: this Python comes without the sources of its '
                f'standard library, or with zipped ones. Set {paths} to the lib/python3.* '
                'directory of a Python with these sources.'
            )
        corpus = train if self.split == 'train' else held_out
        return dataclasses.replace(corpus, data=corpus.data[: self.max_bytes or None])


@functools.lru_cache(maxsize=4)
def _read(root: Path) -> tuple[Corpus, Corpus]:
    """The train and the eval split of a library, both with the fingerprint of the whole."""
    texts = list(_texts(root))
    eval_size = sum(map(len, texts)) // EVAL_PART
    train, held_out = bytearray(), bytearray()
    for text in texts:
        if len(held_out) < eval_size and len(text) <= eval_size // 4:
            held_out += text[: eval_size - len(held_out)]
        else:
            train += text
    fingerprint = hashlib.sha256(b'%d\n' % len(train) + train + held_out).hexdigest()
    return corpus_of(bytes(train), fingerprint), corpus_of(bytes(held_out), fingerprint)


def _texts(root: Path) -> Iterator[bytes]:
    left = MAX_BYTES
    for file in sources(root):
        if not left:
            return
        text = (root / file).read_bytes()[:left]
        left -= len(text)
        yield text


def sources(root: Path) -> list[str]:
    """Relative paths of the files of the corpus, in the order of their hashes."""
    return sorted(_sources(root), key=lambda file: hashlib.sha256(file.encode()).digest())


def _sources(root: Path) -> Iterator[str]:
    """Relative paths, with forward slashes, of the files of the corpus."""
    for directory, subdirectories, files in os.walk(root):  # Follows no links.
        subdirectories[:] = [
            name
            for name in subdirectories
            if name not in _LEFT_OUT and not name.startswith('config-')
        ]
        for name in files:
            path = Path(directory, name)
            of_this_build = name.startswith('_sysconfigdata')
            if path.suffix == '.py' and not of_this_build and not path.is_symlink():
                yield path.relative_to(root).as_posix()
