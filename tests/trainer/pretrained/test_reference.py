import pytest

from tests.factories import pretrained

NAMES = sorted(folder.name for folder in pretrained.directory('').iterdir())


def test_fixtures_are_models_of_each_family():
    assert len(NAMES) == 12
    assert all(len(pretrained.calls(name)) in (1, 3, 4) for name in NAMES)


@pytest.mark.slow
def test_fixtures_have_the_logits_of_the_real_library():
    differences = pretrained.differences([(pretrained.directory(name), name) for name in NAMES])
    assert max(differences) < 1e-5, dict(zip(NAMES, differences, strict=True))
