"""Trials that can be changed: by the worker that runs them, and by the study."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Collection, Mapping, Set
from typing import Any

from absl import logging

from paxtune.objectives.aggregation import NothingMeasuredError
from paxtune.objectives.limits import violation
from paxtune.objectives.measurement import Measurement, as_number, as_step, with_carried
from paxtune.objectives.rewards import NonFiniteRewardError, measured_rewards
from paxtune.study import transitions
from paxtune.study.record import Costs, Lineage, RunTime, TrialRecord
from paxtune.study.store import TrialStore
from paxtune.study.transitions import IllegalTransition, Transition
from paxtune.study.trial import Scoring, Trial, TrialContext, aggregated
from trainer.runtime.directory import JobPath
from trainer.runtime.wall_clock import Profile


class RunningTrial:
    """A trial that moves on: each transition is one transaction of the store.

    A trial whose final metrics are beyond a limit is INFEASIBLE, however it ends.

    Attributes:
        view: the trial as it stands after the last transition of this object.
        resumed: whether the trial was claimed before, by a process that did not finish it.
        step: the highest step that this process reported; 0 before.
        has_reported: whether this process has reported a step.
    """

    def __init__(
        self, record: TrialRecord, context: TrialContext, scoring: Scoring, store: TrialStore
    ) -> None:
        self.view = Trial(record, context)
        self._context, self._scoring, self._store = context, scoring, store
        self.resumed = sum(event.event == 'claimed' for event in record.history) > 1
        self.step, self._steps, self.has_reported = 0, set[int](), False

    def __repr__(self) -> str:
        return repr(self.view)

    def _repr_html_(self) -> str:
        return self.view._repr_html_()

    @property
    def id(self) -> int:
        """The trial's number in the study, from 1."""
        return self.view.id

    @property
    def decisions(self) -> dict[str, Any]:
        """Decisions by path: see `Trial.decisions`."""
        return self.view.decisions

    @property
    def directory(self) -> JobPath | None:
        """The directory of the trial; None in memory: see `Trial.directory`."""
        return self.view.directory

    @property
    def lineage(self) -> Lineage:
        """Relations to other trials: parent, replicates, warm starts, forks."""
        return self.view.lineage

    @property
    def continues_from(self) -> tuple[int, int] | None:
        """The trial and the step to continue from: see `Trial.continues_from`."""
        return self.view.continues_from

    def materialize(self) -> Any:
        """Makes the experiment, or the values, of the trial: see `Trial.materialize`."""
        return self.view.materialize()

    def report(
        self,
        step: int,
        metrics: Mapping[str, float],
        checkpoint: str | None = None,
        undefined: Set[str] = frozenset(),
    ) -> Measurement:
        """Adds a measurement. A step that was reported before stays unchanged, with a warning.

        Args:
            step: an integer from 0.
            metrics: all metrics by name. NaN and infinity are left out, and noted by name.
            checkpoint: the path of the checkpoint of this step.
            undefined: metrics that are NaN because nothing defines them here. They end no trial;
                their last values count at its end.

        Returns:
            The measurement. It has no rewards while a metric that they need is missing, or
            undefined.

        Raises:
            UserError: a metric is no number, or the step is no integer from 0.
            NonFiniteRewardError: the reward is NaN or infinite. Nothing is written.
            IllegalTransition: the trial is not ACTIVE.
        """
        step = as_step(step)
        metrics = {name: as_number(name, value) for name, value in metrics.items()}
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}

        # Code of users computes rewards: outside of the transaction, which holds locks.
        seen = self.view.measurements
        is_new = self.view.status.is_open and all(each.step != step for each in seen)
        rewards = self._rewards_of(with_carried(seen, metrics), undefined) if is_new else ()

        def reported(record: TrialRecord, _: datetime.datetime) -> TrialRecord:
            nonlocal rewards
            known = Trial(record, self._context).measurements
            if record.status.is_open and any(each.step == step for each in known):
                return record
            if len(known) != len(seen):
                rewards = self._rewards_of(with_carried(known, metrics), undefined)
            # The last value that is defined counts, unlike before a trial diverged.
            had_value = undefined and {name for each in known for name in each.metrics}
            measurement = Measurement(step, finite, rewards, checkpoint)
            noted = {*metrics} - {*finite} - (undefined & had_value)
            after = transitions.report(record, measurement, noted)
            if known and known[-1].step > step:  # An attempt that begins anew has other steps.
                in_order = tuple(sorted(after.measurements, key=lambda each: each.step))
                return dataclasses.replace(after, measurements=in_order)
            return after

        self._apply(reported)
        found = next(each for each in self.view.measurements if each.step == step)
        # Another attempt, or one that goes on, may measure earlier steps anew.
        if step in self._steps and found.metrics != finite:
            logging.warning(
                'Trial %d reports step %d again. Its first metrics stay: %s',
                self.id,
                step,
                dict(found.metrics),
            )
        self._steps.add(step)
        self.step, self.has_reported = max(step, self.step), True
        return found

    def add(self, measurement: Measurement, non_finite: Collection[str] = ()) -> None:
        """Adds a measurement with its rewards: see `transitions.report`. Steps may repeat."""
        self._apply(lambda record, _: transitions.report(record, measurement, non_finite))
        self.step, self.has_reported = measurement.step, True

    def _rewards_of(
        self, metrics: Mapping[str, float], undefined: Set[str] = frozenset()
    ) -> tuple[float, ...]:
        rewards = self._scoring.rewards
        try:
            return measured_rewards(rewards, metrics, self._scoring.sub_experiments)
        except NonFiniteRewardError:
            if any(metric.matches(undefined) for each in rewards for metric in each.metrics):
                return ()
            raise

    def final_metrics(self) -> dict[str, float]:
        """Computes the metrics that the trial would end with now: see `trial.aggregated`.

        Raises:
            NothingMeasuredError: nothing was measured.
        """
        return aggregated(self.view, self._scoring)

    def complete(self) -> None:
        """Ends the trial: measurements become final metrics, and these become rewards.

        Raises:
            NonFiniteRewardError: a reward is NaN or infinite.
            MissingMetricError: a reward needs a metric that was not measured.
            IllegalTransition: the trial has ended, or nothing was measured.
        """
        self._require_open()
        try:
            metrics = self.final_metrics()
        except NothingMeasuredError as error:
            if self.view.record.non_finite:
                raise NonFiniteRewardError(str(error)) from error
            raise IllegalTransition(f'trial {self.id} cannot be completed: {error}') from error
        rewards = tuple(reward.value(metrics) for reward in self._scoring.rewards)
        self.finish(Measurement(self.view.measurements[-1].step, metrics, rewards))

    def finish(
        self, final: Measurement, *, reason: str | None = None, is_stopped: bool = False
    ) -> None:
        """Ends the trial with a given final measurement: see `transitions.complete`."""
        # Before NaN is left out: it is within no limit.
        if broken := violation(self._scoring.limits, final.metrics):
            self.fail(broken)
            return
        self._apply(
            lambda record, now: transitions.complete(
                record, final, now, reason=reason, is_stopped=is_stopped
            )
        )

    def stop(self, reason: str) -> None:
        """Ends the trial early, with its last measurement. Such a trial is never the best.

        Raises:
            IllegalTransition: the trial has ended, or no reward was measured.
        """
        self._require_open()
        curve = self.view.score_curve
        if not curve:
            raise IllegalTransition(
                f'trial {self.id} cannot be stopped: nothing was measured that has a reward'
            )
        last = next(each for each in reversed(self.view.measurements) if each.step in curve)
        known = with_carried(self.view.measurements, last.metrics)
        self.finish(Measurement(last.step, known, last.rewards), reason=reason, is_stopped=True)

    def end_early(self, reason: str) -> None:
        """Stops the trial; without any reward it becomes infeasible. Raises as `stop`."""
        if self.view.score_curve:
            self.stop(reason)
        else:
            self.fail(f'{reason} (before a reward was measured)')

    def conclude(
        self, reason: str, reward: float | None = None, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Ends the trial with a given reward, or with metrics to compute the reward from.

        Args:
            reason: for people.
            reward: the reward, for a study with one objective.
            metrics: replace the measured metrics of the same names.

        Raises:
            NonFiniteRewardError: the reward is NaN or infinite.
            IllegalTransition: the trial has ended.
        """
        self._require_open()
        *_, last = [Measurement(0, {}), *self.view.measurements]
        known = {**with_carried(self.view.measurements, last.metrics), **(metrics or {})}
        if reward is None:
            rewards = self._rewards_of(known)
        elif len(self._scoring.rewards) != 1:
            raise RuntimeError('a reward can be given only in a study that has one')
        elif not math.isfinite(reward):
            raise NonFiniteRewardError(f'the reward is {reward}')
        else:
            rewards = (reward,)
        if len(rewards) < len(self._scoring.rewards):
            self.fail(f'{reason} (before a reward was measured)')
            return
        self.finish(Measurement(last.step, known, rewards), reason=reason)

    def fail(self, reason: str, is_error: bool = False) -> None:
        """Ends the trial as infeasible, with `is_error` as failed: see `Faults.max_failures`."""
        self._apply(lambda record, now: transitions.fail(record, reason, now, is_error=is_error))

    def pause(self, step: int, why: str) -> None:
        """Pauses the trial at a saved step: see `paxtune.schedulers`."""
        self._apply(lambda record, now: transitions.pause(record, step, why, now))

    def promote(self, why: str) -> None:
        """Ends this pause. The next worker that asks claims the trial."""
        step = self.view.record.paused_at
        self._apply(lambda record, now: transitions.promote(record, step, why, now))

    def release(self, why: str) -> None:
        """Gives the trial back, to go on later."""
        self._apply(lambda record, now: transitions.release(record, why, now))

    def add_event(self, event: str, step: int | None = None) -> None:
        """Adds an event to the history."""
        self._apply(lambda record, now: transitions.add_event(record, event, now, step=step))

    def set_attribute(self, name: str, value: bool | int | float | str) -> None:
        """Sets an attribute: a small value for people, which no algorithm sees.

        A value of this name is replaced. Attributes stay when the trial goes on in another attempt.

        Args:
            name: a printable text of at most 100 characters.
            value: a finite number, a boolean, or a text of at most 1,000 characters.

        Raises:
            ValueError: the name or the value is another one, or the trial has 64 attributes.
            IllegalTransition: the trial has ended.

        Example:
            >>> import paxtune, pyglove as pg
            >>> def train(x, trial):
            ...     trial.set_attribute('dataset', 'v2')
            ...     return x
            >>> space = {'x': pg.floatv(0.0, 1.0)}
            >>> study = paxtune.tune(train, space=space, objective='minimize', num_trials=1)
            >>> dict(study.trials[0].attributes)
            {'dataset': 'v2'}
        """
        self._apply(lambda record, _: transitions.set_attribute(record, name, value))

    def set_metadata(self, values: Mapping[str, str]) -> None:
        """Adds to the trial's metadata, in any state."""
        self._change(metadata=lambda record: {**record.metadata, **values})

    def set_memo(self, values: Mapping[str, str]) -> None:
        """Adds to the notes of the trial's algorithm, in any state."""
        self._change(memo=lambda record: {**record.memo, **values})

    def set_time(self, seconds: float, devices: int, profile: Profile | None = None) -> None:
        """Sets the run time and the profile of all attempts, and the number of devices."""
        self._change(run_time=lambda _: RunTime(seconds, devices), profile=lambda _: profile or {})

    def set_costs(self, costs: Costs) -> None:
        """Sets the costs that were measured before the first step."""
        if costs != self.view.record.costs:
            self._change(costs=lambda _: costs)

    def set_warm_start(self, trial: int | None, step: int | None = None) -> None:
        """Sets the trial, and the step, whose weights this one really begins with."""
        self._change(
            lineage=lambda record: dataclasses.replace(
                record.lineage, warm_start=trial, warm_start_step=step
            )
        )

    def _change(self, **fields: Callable[[TrialRecord], Any]) -> None:
        def changed(record: TrialRecord, _: datetime.datetime) -> TrialRecord:
            made = {name: value(record) for name, value in fields.items()}
            return dataclasses.replace(record, **made)

        self._apply(changed)

    def _require_open(self) -> None:
        self._show(self._store.trial(self.id))
        if not self.view.status.is_open:
            raise IllegalTransition(f'trial {self.id} is {self.view.status.upper()} already')

    def _apply(self, transition: Transition) -> None:
        self._show(self._store.apply(self.id, transition))

    def _show(self, record: TrialRecord) -> None:
        self.view = Trial(record, self._context)
