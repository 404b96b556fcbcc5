"""Compiles the program of the next trial while a trial runs."""

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from paxtune.objectives.metrics import split_name
from paxtune.running.callbacks import Callback
from paxtune.running.trial_json import num_threads
from paxtune.search_space.decisions import Decisions
from paxtune.study.trial_costs import TIMED
from paxtune.study.trial_experiments import shared_parts_of
from trainer.program.program import spec_key
from trainer.program.setup import compile_ahead
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.runtime.wall_clock import COMPILATION, phase
from trainer.symbolic.component import key
from trainer.symbolic.errors import UserError

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
    trials as without. The compilation helps where the real suggestion has the same structure. The
    next trial begins once it has ended, so it is never beside another trial.

    A trial that lost more than 5 % of its time is the last one with it. It does nothing on one
    core, for experiments with sub-experiments, and where a search limits or rewards speed.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_off = num_threads() < 2
        self._structure: list[tuple[Any, ...]] = []  # Of the suggestion that is compiled.
        self._alone: list[float] = []  # Seconds of steps of this trial, before the thread.
        self._lost = 0.0  # Seconds of this trial.
        self._began = self._last = 0.0
        self._step: int | None = None  # The last one; None before the first of a trial.

    def on_study_start(self, study: 'Study') -> None:
        if is_timed(study):
            logging.warning('--precompile is off: the search limits or rewards speed')
        self._is_off |= is_timed(study) or bool(study.space.sub_experiments)

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._alone, self._lost, self._began = [], 0.0, time.perf_counter()
        if self._thread is not None:
            with phase(COMPILATION):
                self._thread.join()
            self._thread = None
            if self._structure != structure(study, trial.by_id):
                self._lost = time.perf_counter() - self._began
        self._last, self._step = time.perf_counter(), None

    def on_step(
        self, study: 'Study', trial: 'Trial', step: int, metrics: Mapping[str, float]
    ) -> None:
        if metrics or self._is_off:  # Metrics are those of an earlier step.
            return
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        # An execution may have several steps.
        count, self._step = 1 if self._step is None else step - self._step, step
        if self._thread is None:
            self._alone += [seconds / count] * count
            if len(self._alone) >= _FIRST:
                self._thread = threading.Thread(
                    target=self._compile_next, args=(study,), name=THREAD, daemon=True
                )
                self._thread.start()
        elif self._thread.is_alive():
            self._lost += seconds - count * statistics.median(self._alone)

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        self._last = time.perf_counter()

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._check(trial)

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self._check(trial)

    def on_study_end(self, study: 'Study') -> None:
        if self._thread is not None:
            self._thread.join()  # XLA cannot be interrupted.

    def _check(self, trial: 'Trial') -> None:
        lost, self._lost = self._lost, 0.0
        share = lost / (time.perf_counter() - self._began)
        if share > _SHARE:
            self._is_off = True
            text = '--precompile is off: it has slowed trial %d by %.0f %%'
            logging.warning(text, trial.id, 100 * share)

    def _compile_next(self, study: 'Study') -> None:
        if sys.platform == 'linux':  # There it is of this thread alone: the trial comes first.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        self._structure = []
        try:
            decisions = study.expected_decisions()
            if decisions is not None:
                self._structure = structure(study, decisions)
                for experiment in shared_parts_of(study.space, decisions).values():
                    compile_ahead(experiment)
        except Exception as error:
            # The trial itself will report it, if it comes.
            logging.info('Nothing was compiled ahead: %s', error)


def structure(study: 'Study', decisions: Decisions) -> list[tuple[Any, ...]]:
    """Returns keys that are equal for trials whose programs are equal."""
    try:
        parts = shared_parts_of(study.space, decisions).values()
        return [
            (key(each.task), spec_key(each.train_input.padded_spec()), key(each.mesh))
            for each in parts
        ]
    except (UserError, ValueError):
        return []  # The trial will be infeasible.


def is_timed(study: 'Study') -> bool:
    """Returns True if the reward, a limit or the scheduler of a search depends on speed."""
    metrics = (each for names in study.search.metrics.values() for each in names)
    return any(split_name(each.name)[0] in (TIMED, *THROUGHPUT_METRICS) for each in metrics)
