"""Studies that several files use."""

from collections.abc import Iterator

import pytest

from paxtune.study.study import Study
from tests.factories.studies import opened, ran


@pytest.fixture
def two_decisions() -> Iterator[Study]:
    """Two decisions, each tried three times: the first is luckier, the second better."""
    with opened(replicates=3) as made:
        yield ran(made, 1.0, 9.0, 8.0, 4.0, 5.0, 3.0)
