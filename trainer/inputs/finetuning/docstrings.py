"""Pairs of a signature and its summary, from the standard library: data to fine-tune anywhere."""

import ast
import functools
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from trainer.inputs.finetuning.example_tokens import ExampleEncoder
from trainer.inputs.finetuning.rows_input import ExampleRowsInput, Row
from trainer.inputs.text.stdlib import sources
from trainer.runtime.home import expanded
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError

_MIN_SUMMARY, _MAX_SUMMARY, _MAX_SIGNATURE = 20, 76, 100
_PER_FILE, _EVAL_EVERY = 3, 5


class DocstringInput(ExampleRowsInput):
    """Functions of Python's standard library, and the first lines of their docstrings.

    Each function is documented on one line, and has a signature and a summary of its own. Files
    come in the order of the hashes of their paths, with at most three functions each; evaluation
    has other files than training. Equal Python versions have equal pairs. Rows have
    `prefix_lengths`, so a decode set can have them, too.

    Attributes:
        split: 'train' or 'eval'.
        num_pairs: number of functions.
        task: 'summary' asks for the summary of a signature, 'signature' for the reverse.
        path: the directory of the library, on a disk; '' for the running Python's.
    """

    split: Literal['train', 'eval']
    num_pairs: int = 200
    task: Literal['summary', 'signature'] = 'summary'
    path: str = ''

    def check(self) -> None:
        super().check()
        require_positive(self, 'num_pairs')

    def examples(self, encoder: ExampleEncoder) -> Iterator[Sequence[Row]]:
        root = Path(expanded(self.path or sysconfig.get_path('stdlib')))
        pairs = docstring_pairs(root, self.split, self.num_pairs)
        if len(pairs) < self.num_pairs:
            paths = ' and '.join(self.settings('num_pairs'))
            raise UserError(
                f'{root} has {len(pairs)} functions with a summary for {self.split!r}: lower '
                f'{paths} to that, or set path to the lib/python3.* directory of a Python with '
                'sources'
            )
        for signature, summary in pairs:
            prompt, answer = f'{signature}\n    """', summary
            if self.task == 'signature':
                prompt, answer = f'"""{summary}"""\n', signature
            tokens = encoder.pair(prompt, answer)
            row = self.row(tokens, f'the docstring of {signature}')
            length = np.int32(np.argmax(tokens.is_answer))
            yield [] if row is None else [{**row, 'prefix_lengths': length}]


@functools.lru_cache(maxsize=8)
def docstring_pairs(root: Path, split: str, count: int) -> tuple[tuple[str, str], ...]:
    """The first signatures and summaries of the files of a split, at most `count`."""
    found: dict[str, str] = {}
    answers: set[str] = set()
    for number, file in enumerate(sources(root)):
        if (number % _EVAL_EVERY == 0) != (split == 'eval'):
            continue
        taken = 0
        for signature, summary in _documented(root / file):
            if signature in found or summary in answers or taken == _PER_FILE:
                continue
            taken += 1
            found[signature] = summary
            answers.add(summary)
            if len(found) == count:
                return tuple(found.items())
    return tuple(found.items())


def _documented(file: Path) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():  # Old files have escapes that warn.
        warnings.simplefilter('ignore')
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith('_'):
            continue
        returns = '' if node.returns is None else f' -> {ast.unparse(node.returns)}'
        signature = f'def {node.name}({ast.unparse(node.args)}){returns}:'
        lines = (ast.get_docstring(node) or '').splitlines()
        summary = lines[0].strip() if lines and not ''.join(lines[1:2]).strip() else ''
        is_sentence = summary.endswith('.') and summary.isascii()
        fits = len(signature) <= _MAX_SIGNATURE and _MIN_SUMMARY <= len(summary) <= _MAX_SUMMARY
        if is_sentence and fits:
            yield signature, summary
