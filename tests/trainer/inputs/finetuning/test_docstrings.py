"""Pairs of signatures and summaries of the standard library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.inputs.finetuning.docstrings import DocstringInput, docstring_pairs
from trainer.symbolic.errors import UserError

FUNCTION = '''
def {name}(a, b=3) -> int:
    """Returns the sum of {name}, as it is known.

    More.
    """
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for number in range(20):
        file = tmp_path / f'module_{number}.py'
        file.write_text(''.join(FUNCTION.format(name=f'f{number}_{i}') for i in range(5)))
    (tmp_path / 'broken.py').write_text('def f(:')
    (tmp_path / 'hidden.py').write_text(FUNCTION.format(name='_private'))
    (tmp_path / 'copy.py').write_text((tmp_path / 'module_1.py').read_text())
    return tmp_path


def data(library: Path, **fields: Any) -> DocstringInput:
    given = {'batch_size': 2, 'sequence_length': 128, 'split': 'train', 'num_pairs': 12}
    return DocstringInput(path=str(library), **given | fields)


def test_a_pair_is_a_signature_and_its_summary(library: Path) -> None:
    made = data(library)
    batch = made.get_next()
    prompt = made.text_of(batch['ids'][0, : batch['prefix_lengths'][0]], 'labels')
    answer = made.text_of(batch['labels'][0, batch['weights'][0] > 0], 'labels')
    name = prompt.removeprefix('def ').partition('(')[0]
    assert prompt == f'def {name}(a, b=3) -> int:\n    """'
    assert answer == f'Returns the sum of {name}, as it is known.'


def test_the_reverse_asks_for_the_signature(library: Path) -> None:
    made = data(library, task='signature')
    batch = made.get_next()
    answer = made.text_of(batch['labels'][0, batch['weights'][0] > 0], 'labels')
    assert answer.startswith('def f') and answer.endswith('(a, b=3) -> int:')


def test_splits_come_from_different_files_and_have_no_pair_twice(library: Path) -> None:
    found = {split: docstring_pairs(library, split, 1000) for split in ('train', 'eval')}
    files = {
        split: {signature.partition('_')[0] for signature, _ in pairs}
        for split, pairs in found.items()
    }
    assert not {*found['train']} & {*found['eval']}
    assert files['train'] and files['eval']
    for pairs in found.values():
        for part in zip(*pairs, strict=True):
            assert len({*part}) == len(part)
        assert not any('_private' in signature for signature, _ in pairs)


def test_pairs_are_equal_each_time_and_fewer_are_the_first(library: Path) -> None:
    first, again = data(library).arrays(), data(library, num_pairs=5).arrays()
    np.testing.assert_array_equal(first.features['ids'][:5], again.features['ids'])
    assert first.fingerprint != again.fingerprint


def test_a_library_without_enough_pairs_is_refused(library: Path) -> None:
    with pytest.raises(UserError, match=r"functions with a summary for 'train': lower .*num_pairs"):
        data(library, num_pairs=500).arrays()


def test_this_python_has_the_pairs_of_the_search() -> None:
    made = DocstringInput(batch_size=1, sequence_length=256, split='train', num_pairs=200)
    assert made.num_examples() == 200
