"""Experiments are what they were. Where they are meant to change, `golden.py` says what to do."""

import pytest

from tests.search_spaces import golden

_REWRITE = 'if this is meant: python -m tests.search_spaces.golden --write'


def test_each_experiment_has_a_file_and_no_other_has() -> None:
    files = sorted(file.stem for file in golden.DIRECTORY.glob('*.txt'))
    assert files == sorted(golden.names()), _REWRITE


@pytest.mark.parametrize('name', golden.names())
def test_each_experiment_is_what_it_was(name: str) -> None:
    assert golden.text_of(name) == golden.path_of(name).read_text(), _REWRITE
