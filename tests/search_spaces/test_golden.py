"""Golden files of experiments. `golden.py` rewrites them where a change is meant."""

import pytest

from tests.search_spaces import golden

_REWRITE = 'if this is meant: python -m tests.search_spaces.golden --write'


def test_each_experiment_has_a_file_and_no_other_has() -> None:
    files = sorted(file.stem for file in golden.DIRECTORY.glob('*.txt'))
    assert files == sorted([*golden.names(), golden.DEFAULTS]), _REWRITE


@pytest.mark.pax('model_params.txt')
@pytest.mark.parametrize('name', golden.names())
def test_each_experiment_is_unchanged(name: str) -> None:
    assert golden.text_of(name) == golden.path_of(name).read_text(), _REWRITE


def test_the_defaults_of_all_components_are_unchanged() -> None:
    assert golden.defaults() == golden.path_of(golden.DEFAULTS).read_text(), _REWRITE
