"""Studies for tests."""

import pytest

from paxtune.study import Study
from tests.paxtune.toys import toy


@pytest.fixture
def study(tmp_path):
    with Study.open(tmp_path, toy()) as study:
        yield study
