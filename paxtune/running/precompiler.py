"""Compiles the program of the next trial while a trial runs."""

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from absl import logging

from paxtune.running.callbacks import Callback
from paxtune.study.trial_experiments import shared_parts_of
from trainer.program.setup import compile_ahead

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

THREAD = 'precompiler'

_FIRST = 8
"""Steps of a trial before the thread starts: they show how long a step takes alone."""

_SHARE = 0.05
"""Time of a trial that a compilation beside it may cost."""

_LOWEST_PRIORITY = 19


class Precompiler(Callback):
    """Compiles in a thread what the next trial will need, one trial ahead.

    While a trial runs, the algorithm makes the suggestion that it would make now. The program of
    that suggestion is compiled, and the suggestion itself is dropped. So a search suggests the same
    trials as without. The compilation helps where the real suggestion has the same structure.

    A trial that it has slowed by more than 5 % is the last one with it. On a machine with one core
    it does nothing.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_off = _num_cores() < 2
        self._alone: list[float] = []  # Seconds of steps of this trial, before the thread.
        self._beside: list[float] = []  # Of those beside it.
        self._began = self._last = 0.0

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._alone, self._beside = [], []
        self._began = self._last = time.perf_counter()

    def on_step(
        self, study: 'Study', trial: 'Trial', step: int, metrics: Mapping[str, float]
    ) -> None:
        if metrics or self._is_off:  # Metrics are those of an earlier step.
            return
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        if len(self._alone) == _FIRST:
            if self._is_busy:
                self._beside.append(seconds)
        elif not self._is_busy:
            self._alone.append(seconds)
            if len(self._alone) == _FIRST:
                self._thread = threading.Thread(
                    target=_compile_next, args=(study,), name=THREAD, daemon=True
                )
                self._thread.start()

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        self._last = time.perf_counter()

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        if not self._beside:
            return
        lost = sum(self._beside) - len(self._beside) * statistics.median(self._alone)
        share = lost / (time.perf_counter() - self._began)
        if share > _SHARE:
            self._is_off = True
            text = '--precompile is off: it has slowed trial %d by %.0f %%'
            logging.warning(text, trial.id, 100 * share)

    def on_study_end(self, study: 'Study') -> None:
        if self._thread is not None:
            self._thread.join()  # XLA cannot be interrupted.

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()


def _compile_next(study: 'Study') -> None:
    # Of this thread alone, on Linux: the steps of the trial come first.
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    decisions = study.expected_decisions()
    if decisions is None:
        return
    try:
        for experiment in shared_parts_of(study.space, decisions).values():
            compile_ahead(experiment)
    except Exception as error:
        # The trial itself will report it, if it comes.
        logging.info('Nothing was compiled ahead: %s', error)


def _num_cores() -> int:
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
