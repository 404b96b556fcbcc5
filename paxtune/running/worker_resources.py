"""CPU, memory and device memory of a worker, as lines of its log."""

import logging
import resource
import sys
import time
from typing import TYPE_CHECKING, Self

import psutil

from paxtune.running.callbacks import Callback
from paxtune.study.worker_logs import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

SECONDS = 30.0
"""The least time between two lines of a trial that runs."""

_RSS_UNIT = 1 if sys.platform == 'darwin' else 1024  # The unit of `ru_maxrss`.

_LOG = logging.getLogger('paxtune.worker')


class ResourceLog(Callback):
    """Logs the resources of this process: at once, while trials run, and at the end.

    A line has these fields. Memory of devices is logged after the first step of a trial, if they
    report it: an earlier reading would start JAX.

    - `cpu_percent`: of one core, since the line before; since the start of the process at first.
    - `memory_bytes`, `peak_memory_bytes`: resident memory of the process.
    - `device_bytes`, `peak_device_bytes`: memory of all devices of the process.
    """

    def __init__(self, worker: str, seconds: float = SECONDS) -> None:
        """Makes a log of a worker, at most one line in an interval of seconds."""
        self._process, self._worker, self._seconds = psutil.Process(), worker, seconds
        self._last = self._process.create_time(), 0.0
        self._has_devices = False
        self._logged = 0.0

    def __enter__(self) -> Self:
        self._log()
        return self

    def __exit__(self, *error: object) -> None:
        self._log()

    def on_step(
        self, study: 'Study', trial: 'Trial', step: int, metrics: 'Mapping[str, float]'
    ) -> None:
        self._has_devices = True
        self._log_if_due()

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        self._log_if_due()

    def _log_if_due(self) -> None:
        if time.monotonic() - self._logged >= self._seconds:
            self._log()

    def _log(self) -> None:
        self._logged = time.monotonic()
        # Lines about a worker are none about its trial, or about a lane.
        fields = {'trial': None, 'worker': self._worker, **self._sample()}
        _LOG.info(RESOURCES, extra={'fields': fields})

    def _sample(self) -> dict[str, float]:
        times = self._process.cpu_times()
        (before, used), now, total = self._last, time.time(), times.user + times.system
        self._last = now, total
        memory = self._process.memory_info().rss
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        found: dict[str, float] = {
            'cpu_percent': round(100 * (total - used) / max(now - before, 1e-3), 1),
            'memory_bytes': memory,
            'peak_memory_bytes': max(memory, peak),  # The peak lags behind.
        }
        return found | (_device_memory() if self._has_devices else {})


def _device_memory() -> dict[str, float]:
    import jax

    stats = [each for device in jax.local_devices() if (each := device.memory_stats())]
    if not stats:
        return {}
    return {
        'device_bytes': sum(each.get('bytes_in_use', 0) for each in stats),
        'peak_device_bytes': sum(each.get('peak_bytes_in_use', 0) for each in stats),
    }
