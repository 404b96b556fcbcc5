import contextlib
import dataclasses
import math
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pyglove as pg

from paxtune.algorithms import Algorithm, Suggestion, SuggestionContext
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.pyglove_backend.history import FED_BACK, proposals, replay, to_reward
from paxtune.pyglove_backend.views import DNA_METADATA, View, is_active, to_text
from paxtune.search_space.decisions import from_dna, size
from paxtune.search_space.spec_value import value_of
from paxtune.storage.claims import next_claim
from paxtune.storage.open_study import open_study
from paxtune.study import stop_requests
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.transitions import IllegalTransition
from trainer.symbolic.errors import UserError

Worker = tuple[str, str | int]
"""The worker of a trial: ('group', its name), or ('thread', its number) for one without a group."""

_GROUP = 'group'
_ENDLESS = 10**9


class PyGloveAlgorithm(Algorithm):
    """Stands in a study whose trials `pg.sample` gets from a PyGlove algorithm."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        raise UserError(
            'search.algorithm: a PyGlove algorithm proposes the trials of this study. Go on with '
            "pg.sample(…, backend='paxtune', job_log_dir=…)."
        )


class Loop:
    """The study of a sampling loop, with the algorithm in this process.

    All of it is done under one lock. PyGlove's algorithms keep state, so there is one algorithm at
    a time for all workers: the last one given. It observes a trial before that trial is written as
    completed, so it observes a trial again that a kill loses.

    Attributes:
        lock: held by each user of the study.
        view: shows its trials to PyGlove.
    """

    def __init__(self, study: Study, spec: pg.DNASpec) -> None:
        self.study, self._spec, self.lock = study, spec, threading.RLock()
        self.view = View(study, spec)
        self._objectives = self.view.objectives
        self._algorithm: pg.DNAGenerator | None = None
        self._dnas: dict[int, pg.DNA] = {}
        self._holders: dict[Worker, int] = {}
        self._num_fed_back = sum(each.rewards is not None for each in proposals(study))

    def validate_same(self, value: Any, metrics: Sequence[str]) -> None:
        """Compares the loop with the arguments of `pg.sample`.

        Raises:
            ValueError: the space or the optimized metrics differ.
        """
        if pg.ne(self.study.value, value):
            raise ValueError(
                f'the search space differs from that of the same sampling loop: {value} instead '
                f'of {self.study.value}. Give the new one another name or job_log_dir.'
            )
        if list(metrics) != self._objectives:
            raise ValueError(
                f'metrics_to_optimize is {list(metrics)}, and was {self._objectives} in the same '
                'sampling loop. Give the new one another name or job_log_dir.'
            )

    def join(self, algorithm: pg.DNAGenerator) -> None:
        """Lets an algorithm propose the trials from now on.

        One that is set up, and has proposed and observed as many trials as there are, or finds
        none, goes on as it is. Any other is shown the trials that there are.

        Raises:
            UserError: it cannot go on from them.
        """
        if algorithm is self._algorithm:
            return
        past, is_new = proposals(self.study), algorithm.dna_spec is None
        if is_new and not past:
            algorithm.setup(self._spec)
        elif past and (is_new or not self._is_in_step(algorithm, len(past))):
            try:
                dnas = replay(algorithm, past, self.view)
            except Exception as error:
                raise UserError(
                    f'{type(algorithm).__name__} cannot go on from the {len(past)} trials that are '
                    f'there: it raised {error!r}. Use the algorithm that has proposed them.'
                ) from error
            self._dnas |= {id_: dna for id_, dna in dnas.items() if self._is_open(id_)}
        self._algorithm = algorithm

    def _is_in_step(self, algorithm: pg.DNAGenerator, num_proposals: int) -> bool:
        seen = (algorithm.num_proposals, algorithm.num_feedbacks)
        return bool(seen == (num_proposals, self._num_fed_back))

    def next(self, worker: Worker, num_examples: int | None) -> tuple[int, pg.DNA]:
        """The trial that a worker is to work on, and its DNA.

        That is the worker's own until it is done; then one that an earlier process has left
        behind; then a new one.

        Raises:
            StopIteration: there are `num_examples` trials, the loop was ended, or the algorithm
                has nothing more to propose.
        """
        if not is_active(self.study):
            raise StopIteration
        held = self._holders.get(worker)
        if held is None or not self._is_open(held):
            held = self._claimed(worker)
        if held is None:
            held = self._proposed(worker, num_examples)
        self._holders[worker] = held
        if held not in self._dnas:
            # The algorithm did not propose the trial, or was in step when the loop was opened.
            self._dnas[held] = self.view.dna(self.study.trial(held).record)
        return held, self._dnas[held]

    def _is_open(self, id_: int) -> bool:
        return self.study.trial(id_).status is Status.ACTIVE

    def _claimed(self, worker: Worker) -> int | None:
        """Claims a trial that waits: one of the worker's group, or without a group."""
        kind, name = worker
        waiting = [trial.record for trial in self.study.trials.unended]
        if kind == 'group':
            waiting = [each for each in waiting if each.memo.get(_GROUP, name) == name]
        store = self.study.store
        found = next_claim(waiting, store.worker, store.is_alive)
        return None if found is None else store.apply(*found).id

    def _proposed(self, worker: Worker, num_examples: int | None) -> int:
        if num_examples is not None and self.study.store.max_id() >= num_examples:
            raise StopIteration
        assert self._algorithm is not None
        dna = self._algorithm.propose()
        if dna.spec is None:
            dna.use_spec(self._spec)
        kind, name = worker
        noted = {DNA_METADATA: to_text(dna.metadata, 'the metadata of a DNA')}
        noted |= {_GROUP: str(name)} if kind == 'group' else {}
        trial = self.study.start(from_dna(self.study.space.spec, dna), noted)
        self._dnas[trial.id] = dna
        return trial.id

    def add_measurement(self, id_: int, measurement: Measurement, reward: float | None) -> None:
        """Adds a measurement to a trial. Values that are not finite are left out.

        Args:
            measurement: of its metrics, without rewards.

        Raises:
            pg.tuning.RaceConditionError: the trial is done.
            ValueError: a metric has a name that is not free.
        """
        values = {name: float(value) for name, value in measurement.metrics.items()}
        if reward is not None and (len(self._objectives) > 1 or self._objectives == ['reward']):
            values['reward'] = reward
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        are_known = all(name in finite for name in self._objectives)
        rewards = tuple(finite[name] for name in self._objectives) if are_known else ()
        added = dataclasses.replace(measurement, metrics=finite, rewards=rewards)
        trial = self.study.open_trial(id_)
        try:
            trial.add(added, {*values} - {*finite})
        except IllegalTransition as error:
            raise pg.tuning.RaceConditionError(
                'Measurements can only be added to PENDING trials. '
                f'Encountered: {self.view.trial(trial.view.record)}'
            ) from error

    def complete(self, id_: int, metadata: Mapping[str, str], links: Mapping[str, str]) -> None:
        """Ends a trial with its last measurement, and gives the algorithm its feedback.

        A trial whose last reward is not finite is infeasible, without feedback.

        Args:
            id_: the trial; nothing happens if it has ended.
            links: added to the trial's memo.

        Raises:
            ValueError: nothing was measured.
        """
        trial = self.study.open_trial(id_)
        record, memo = trial.view.record, dict(links)
        if trial.view.is_terminal:
            return
        if not len(record.measurements):
            raise ValueError(f'At least one measurement should be added for trial {id_}.')
        *_, final = record.measurements
        is_finite = len(final.rewards) == len(self._objectives)
        if is_finite and DNA_METADATA in record.memo:
            assert self._algorithm is not None
            self._algorithm.feedback(self._dnas[id_], to_reward(final.rewards))
            self._num_fed_back += 1
            memo[FED_BACK] = f'{self.study.store.max_id()} {self._num_fed_back}'
        # A kill before the end leaves these notes: they count once the trial has ended.
        if memo:
            trial.set_memo(memo)
        if metadata:
            trial.set_metadata(metadata)
        trial.set_time(final.elapsed_seconds, record.run_time.devices)
        if is_finite:
            trial.finish(final)
        else:
            trial.fail('the reward is not finite')
        self._dnas.pop(id_, None)

    def skip(self, id_: int, reason: str) -> None:
        """Ends a trial as infeasible, unless it has ended. The algorithm gets no feedback."""
        if self._is_open(id_):
            self.study.open_trial(id_).fail(reason)
            self._dnas.pop(id_, None)

    def end(self) -> None:
        """Gives no worker another trial."""
        self.study.store.update_study(lambda study: dataclasses.replace(study, is_ended=True))


def open_loop(
    spec: pg.DNASpec,
    metrics: Sequence[str],
    num_examples: int | None,
    job_log_dir: str | os.PathLike[str] | None,
) -> Loop:
    """A loop over a study, which is made unless it is there.

    The study is closed, and its directory free for others, when no thread has the loop any more.

    Args:
        metrics: the optimized metrics, all of them maximized.
        num_examples: how many trials there are to be, all in all; None for no limit.
        job_log_dir: where the study is; None keeps it in memory.

    Raises:
        UserError: the space cannot be kept in a study, the study that is there is another one, or
            another process is working on it.
    """
    value, rewards = value_of(spec), [MetricReward('maximize', name) for name in metrics]
    search = Search(
        rewards[0] if len(rewards) == 1 else Objectives(rewards),
        budget=Budget(num_examples or (_ENDLESS if size(spec) is None else None)),
        algorithm=PyGloveAlgorithm(),
    )
    with contextlib.ExitStack() as held:
        study = open_study(job_log_dir, value, search=search, is_alone=True)
        held.callback(study.close)
        stop_requests.resume(study.store)
        loop = Loop(study, spec)
        weakref.finalize(loop, held.pop_all().close)
    return loop
