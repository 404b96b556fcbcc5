"""`pg.sample` on a paxtune study. Importing this module registers the backend 'paxtune'.

Example:
    >>> import paxtune.pyglove_backend
    >>> space = pg.Dict(x=pg.floatv(-1.0, 1.0))
    >>> for example, feedback in pg.sample(
    ...     space, pg.geno.Random(seed=1), num_examples=20, name='parabola', backend='paxtune'
    ... ):
    ...     feedback(-(example.x**2))
    >>> result = pg.poll_result('parabola', backend='paxtune')
    >>> result.best_trial.final_measurement.reward > -0.1
    True

With `job_log_dir='runs/parabola'` the study is `runs/parabola/study.db`, which paxtune's commands
and `paxtune.load_study` read. It survives the process: the same call again goes on, the trials
that were left behind first, and `num_examples` counts all trials of the study.

Differences from PyGlove's backend 'in-memory':

- A trial whose last reward is NaN or infinite is infeasible. The algorithm does not observe it.
- Metadata are plain data and components, and tuples come back as lists.
- Several `pg.sample` calls on one study share one algorithm: the one that was given last. Where
  there are trials already, a new one is shown them first (`history.replay`).
- A call with another space or other metrics than the study's is refused.
- There is no best trial with several objectives: see `paxtune.load_study(…).pareto_front`.
- Custom decision points are refused.
"""

import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyglove as pg

from paxtune.objectives.measurement import Measurement
from paxtune.pyglove_backend.loop import Loop, Worker, open_loop
from paxtune.pyglove_backend.views import LINK, SamplingResult, from_text, to_text
from paxtune.search_space.spec_value import value_of
from paxtune.storage.open_study import load_study
from paxtune.study import stop_requests
from trainer.runtime.home import expanded

PathLike = str | os.PathLike[str]

_lock = threading.RLock()
_by_name: dict[str, Loop] = {}
_by_directory: weakref.WeakValueDictionary[Path, Loop] = weakref.WeakValueDictionary()


@pg.tuning.add_backend('paxtune')
class PaxtuneBackend(pg.tuning.Backend):
    """One call of `pg.sample`."""

    def __init__(
        self,
        name: str | None,
        group: str | int | None,
        dna_spec: pg.DNASpec,
        algorithm: pg.DNAGenerator,
        metrics_to_optimize: Sequence[str],
        early_stopping_policy: Any = None,
        num_examples: int | None = None,
        job_log_dir: PathLike | None = None,
    ) -> None:
        """Called by `pg.sample`, with its arguments.

        Args:
            name: of the loop in this process, for `pg.sample` and `pg.poll_result`.
            group: workers of one group work on the same trial; None for a group of this thread.
            metrics_to_optimize: which metrics are maximized.
            num_examples: how many trials the study is to have, all in all.
            job_log_dir: where the study is; None keeps it in memory.

        Raises:
            ValueError: algorithm, policy, space and metrics do not fit together, or not to the
                loop that is there.
            UserError: see `paxtune.pyglove_backend.loop.open_loop` and `Loop.join`.
        """
        super().__init__()
        if not algorithm.multi_objective and len(metrics_to_optimize) > 1:
            raise ValueError(
                "'metrics_to_optimize' should include only 1 metric as multi-objective "
                f'optimization is not supported by {algorithm!r}.'
            )
        _validate_spec(algorithm, dna_spec)
        if early_stopping_policy is not None:
            _validate_spec(early_stopping_policy, dna_spec)
        self._loop = _loop(name, dna_spec, metrics_to_optimize, num_examples, job_log_dir)
        with self._loop.lock:
            self._loop.join(algorithm)
            if early_stopping_policy is not None and early_stopping_policy.dna_spec is None:
                early_stopping_policy.setup(dna_spec)
                measured = [each for each in self._loop.view.trials() if each.measurements]
                early_stopping_policy.recover(measured)
        self._policy, self._metrics = early_stopping_policy, metrics_to_optimize
        self._num_examples = num_examples
        self._worker: Worker = (
            ('thread', threading.get_ident()) if group is None else ('group', str(group))
        )

    def next(self) -> pg.tuning.Feedback:
        with self._loop.lock:
            id_, dna = self._loop.next(self._worker, self._num_examples)
            return _Feedback(self._loop, id_, dna, self._metrics, self._policy)

    @classmethod
    def poll_result(cls, name: str, job_log_dir: PathLike | None = None) -> pg.tuning.Result:
        """A result of a loop so far.

        Args:
            name: of a loop in this process.
            job_log_dir: where the study is; any process may be working on it.

        Raises:
            ValueError: this process has no loop of this name.
            UserError: there is no study in `job_log_dir`.
        """
        with _lock:
            if job_log_dir is None:
                loop = _by_name.get(name)
            else:
                loop = _by_directory.get(Path(expanded(job_log_dir)).resolve())
        if loop is not None:
            return SamplingResult(name, loop.study, loop.lock, loop)
        if job_log_dir is None:
            raise ValueError(f'Result {name!r} does not exist.')
        study = load_study(job_log_dir)
        result = SamplingResult(name, study, threading.RLock())
        weakref.finalize(result, study.close)
        return result


class _Feedback(pg.tuning.Feedback):
    def __init__(
        self, loop: Loop, id_: int, dna: pg.DNA, metrics: Sequence[str], policy: Any
    ) -> None:
        super().__init__(metrics)
        self._loop, self._id, self._dna, self._policy = loop, id_, dna, policy

    @property
    def id(self) -> int:
        return self._id

    @property
    def dna(self) -> pg.DNA:
        return self._dna

    @property
    def status(self) -> str:
        status: str = self.get_trial().status
        return status

    def get_trial(self) -> pg.tuning.Trial:
        with self._loop.lock:
            return self._loop.view.trial(self._loop.study.store.trial(self._id))

    @property
    def checkpoint_to_warm_start_from(self) -> str | None:
        """The last checkpoint of the trial that this one is to begin with; None without one."""
        with self._loop.lock:
            study = self._loop.study
            source = study.trial(self._id).lineage.warm_start
            measured = [] if source is None else study.trial(source).measurements
            checkpoints = [each.checkpoint for each in measured if each.checkpoint is not None]
            return checkpoints[-1] if checkpoints else None

    def _add_measurement(
        self,
        reward: float | None,
        metrics: dict[str, float],
        step: int,
        checkpoint_path: str | None,
        elapse_secs: float,
    ) -> None:
        measurement = Measurement(step, metrics, (), checkpoint_path, elapse_secs)
        with self._loop.lock:
            self._loop.add_measurement(self._id, measurement, reward)

    def set_metadata(self, key: str, value: Any, per_trial: bool = True) -> None:
        """Keeps plain data or components with the trial, or with the study.

        Raises:
            UserError: the value could not be read back.
        """
        added = {key: to_text(value, f'metadata {key!r}')}
        study = self._loop.study
        with self._loop.lock:
            if per_trial:
                study.open_trial(self._id).set_metadata(added)
            else:
                study.set_metadata(added)

    def get_metadata(self, key: str, per_trial: bool = True) -> Any:
        """Returns an item that `set_metadata` stored, or None."""
        with self._loop.lock:
            study = self._loop.study
            # Metadata change after the end, when the study no longer reads the trial.
            record = study.store.trial(self._id) if per_trial else study.record
            text = record.metadata.get(key)
        return None if text is None else from_text(text)

    def add_link(self, name: str, url: str) -> None:
        with self._loop.lock:
            self._loop.study.open_trial(self._id).set_memo({LINK + name: url})

    def done(
        self, metadata: dict[str, Any] | None = None, related_links: dict[str, str] | None = None
    ) -> None:
        """Completes the trial, unless it is, and reports it to the algorithm.

        Raises:
            ValueError: nothing was measured.
            UserError: metadata could not be read back.
        """
        named = (metadata or {}).items()
        added = {key: to_text(value, f'metadata {key!r}') for key, value in named}
        links = {LINK + link: url for link, url in (related_links or {}).items()}
        with self._loop.lock:
            self._loop.complete(self._id, added, links)

    def skip(self, reason: str | None = None) -> None:
        """Makes the trial infeasible, unless it is completed. The algorithm observes nothing."""
        # PyGlove gives a whole traceback: its last line has the error.
        lines = (reason or '').strip().splitlines()
        with self._loop.lock:
            self._loop.skip(self._id, lines[-1] if lines else 'skipped')

    def should_stop_early(self) -> bool:
        """Returns True if the policy or `paxtune.studies stop` ends the trial here."""
        with self._loop.lock:
            trial = self.get_trial()
            if not trial.measurements:
                return False
            if self._id in stop_requests.stopped_trials(self._loop.study.store):
                return True
            return self._policy is not None and bool(self._policy.should_stop_early(trial))

    def end_loop(self) -> None:
        with self._loop.lock:
            self._loop.end()


def forget() -> list[Path]:
    """Lets go of the loops that this process finds by name.

    A study is closed, and its directory free for others, when nothing else holds its loop.

    Returns:
        The directories of loops that are still held.
    """
    with _lock:
        _by_name.clear()
        return list(_by_directory)


def _validate_spec(owner: Any, dna_spec: pg.DNASpec) -> None:
    if owner.dna_spec is not None and pg.ne(owner.dna_spec, dna_spec):
        raise ValueError(
            f'{owner!r} has been set up with a different DNASpec. '
            f'Existing: {owner.dna_spec!r}, New: {dna_spec!r}.'
        )


def _loop(
    name: str | None,
    dna_spec: pg.DNASpec,
    metrics: Sequence[str],
    num_examples: int | None,
    job_log_dir: PathLike | None,
) -> Loop:
    """The loop of a name or a directory in this process; a new one where there is none."""
    path = None if job_log_dir is None else Path(expanded(job_log_dir)).resolve()
    with _lock:
        named = None if name is None else _by_name.get(name)
        loop = named if path is None else _by_directory.get(path)
        if named is not None and named is not loop:
            raise ValueError(
                f'{name!r} is the name of a sampling loop in {named.study.directory or "memory"} '
                'already: choose another name'
            )
        if loop is None:
            loop = open_loop(dna_spec, metrics, num_examples, job_log_dir)
        else:
            loop.validate_same(value_of(dna_spec), metrics)
        if name is not None:
            _by_name[name] = loop
        if path is not None:
            _by_directory[path] = loop
    return loop
