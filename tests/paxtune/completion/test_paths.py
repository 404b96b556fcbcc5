"""Paths and values of `--set`."""

import pytest

from paxtune.completion.paths import completed, settable
from tests.factories.toys import toy
from trainer.symbolic import overrides


def test_each_path_can_be_set_to_each_of_its_values() -> None:
    experiment = toy()
    paths = settable(experiment)
    assert 'rate' in paths
    assert any(paths.values())
    for path, values in paths.items():
        overrides.type_at(experiment, path, path)
        for value in values:
            overrides.override(experiment, [f'{path}={value}'])


@pytest.mark.parametrize(
    ('prefix', 'words'),
    [
        ('', ['model.', 'seed=']),
        ('mod', ['model.layers[', 'model.dims=']),
        ('model.layers', ['model.layers[0]=', 'model.layers[1].']),
        ('model.layers[1]', ['model.layers[1].rate=']),
        ('model.layers[0]=', ['model.layers[0]=a']),
        ('seed=', []),
        ('x', []),
    ],
)
def test_a_path_is_completed_level_by_level(prefix: str, words: list[str]) -> None:
    paths = {'model.layers[0]': ['a'], 'model.layers[1].rate': [], 'model.dims': [], 'seed': []}
    assert completed(paths, prefix) == words
