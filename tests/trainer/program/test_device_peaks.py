from types import SimpleNamespace
from typing import Any

import pytest

from trainer.program.device_peaks import PEAKS, utilization


def devices(kind: str, count: int) -> list[Any]:
    return [SimpleNamespace(device_kind=kind)] * count


def test_utilization_is_of_all_devices() -> None:
    kind, peak = next(iter(PEAKS.items()))
    assert utilization(peak, devices(kind, 2)) == pytest.approx(0.5)


def test_of_an_unknown_device_nothing_is_said() -> None:
    assert utilization(1e12, devices('abacus', 1)) is None
