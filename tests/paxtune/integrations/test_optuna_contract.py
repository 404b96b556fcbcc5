"""Optuna's own tests of samplers."""

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler
from optuna.testing import pytest_samplers

from paxtune.integrations.optuna import PaxtuneSampler

pytestmark = pytest.mark.slow


class TestPaxtuneSampler(
    pytest_samplers.BasicSamplerTestCase,
    pytest_samplers.RelativeSamplerTestCase,
    pytest_samplers.MultiObjectiveSamplerTestCase,
):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: PaxtuneSampler(seed=0)
