"""One trial of a study."""

import dataclasses
import datetime
import functools
import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyglove as pg

from paxtune.objectives.aggregation import LastStep, NothingMeasuredError, final_metrics
from paxtune.objectives.limits import violation
from paxtune.objectives.measurement import Measurement, with_carried
from paxtune.objectives.rewards import NonFiniteRewardError, measured_rewards
from paxtune.search_space.decisions import Decisions, to_dna
from paxtune.storage.vizier_protos import is_reward, outcome, to_measurement, to_proto
from paxtune.storage.vizier_store import STATES, State, TrialProto, note, notes, write_notes
from paxtune.study import prefetch, trial_state

if TYPE_CHECKING:
    from paxtune.study.study import Study


MEMO = 'memo:'
"""What begins the names of notes that the algorithm made."""


class Trial:
    """A trial as it stands in the study, and the ways to move it on.

    It leaves the state ACTIVE exactly once: by `complete`, `stop`, `conclude` or `fail`. Each of
    them is one transaction. Until then it may be paused, and promoted, several times. One whose
    final metrics are beyond a limit of the search is INFEASIBLE, however it ends.

    Attributes:
        id: the trial's number in the study, from 1.
        resumed: it was handed out before, and that process did not finish it.
        step: the step that this process reported last; 0 before.
    """

    def __init__(self, proto: TrialProto, study: 'Study', resumed: bool = False) -> None:
        """Not called directly: trials come from a study."""
        self.id = int(proto.id)
        self._proto = proto
        self._study = study
        self.resumed = resumed
        self.step = 0

    def __repr__(self) -> str:
        return f'Trial({self.id}, {self.state}, {self.decisions})'

    @property
    def state(self) -> State:
        """Where the trial stands. One that was stopped early is COMPLETED, a paused one ACTIVE."""
        return STATES[self._proto.state]

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens to the trial."""
        return self.state in ('COMPLETED', 'INFEASIBLE')

    @property
    def outcome(self) -> str:
        """Its state in one word; 'stopped' where it was stopped early, or 'paused'."""
        return outcome(self._proto)

    @functools.cached_property
    def by_id(self) -> Decisions:
        """The decisions by the id of their decision point, as algorithms see them."""
        parameters: dict[str, str | float] = {}
        for parameter in self._proto.parameters:
            value = parameter.value
            # No category is the empty string.
            parameters[parameter.parameter_id] = value.number_value or value.string_value or 0.0
        return self._study.from_parameters(parameters)

    @functools.cached_property
    def decisions(self) -> dict[str, Any]:
        """{path in the trial's experiment: plain value or short name}."""
        return self._study.space.readable(self.by_id)

    @property
    def dna(self) -> pg.DNA:
        """The decisions in PyGlove's form."""
        return to_dna(self._study.space.spec, self.by_id)

    def materialize(self) -> Any:
        """The trial's experiment: the study's, with every decision made, and its own seeds.

        Raises:
            ValueError: the decisions do not fit together, says a component's `check`.
        """
        made = self._study.space.materialize(self.by_id)
        if self.repeat == 1 or not self._study.space.is_tunable:
            return made
        # Imported here: a study of a function has no use for what trains.
        from paxtune.study.replicate_seeds import reseeded

        return reseeded(made, self.repeat)

    @functools.cached_property
    def measurements(self) -> list[Measurement]:
        """What was measured, by step."""
        checkpoints = _read_json(self._proto, 'checkpoints')
        num_rewards = len(self._study.rewards)
        found = [
            to_measurement(each, num_rewards, checkpoints) for each in self._proto.measurements
        ]
        return sorted(found, key=lambda measurement: measurement.step)

    @property
    def num_measurements(self) -> int:
        """At how many steps it was measured."""
        return len(self._proto.measurements)

    @functools.cached_property
    def final(self) -> Measurement | None:
        """What the trial came to: its final metrics and rewards; None unless COMPLETED."""
        if self.state != 'COMPLETED':
            return None
        return to_measurement(self._proto.final_measurement, len(self._study.rewards), {})

    @property
    def metrics(self) -> Mapping[str, float]:
        """The final metrics; those of the last measurement where the trial has no final ones."""
        if self.final is not None:
            return self.final.metrics
        return self.measurements[-1].metrics if self.measurements else {}

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards of a completed trial, one for each objective; else none."""
        # Not those of `final`: to look at all metrics takes ten times as long.
        count = len(self._study.rewards) if self.state == 'COMPLETED' else 0
        first = self._proto.final_measurement.metrics[:count]
        return tuple(metric.value for metric in first if is_reward(metric.metric_id))

    @property
    def reward(self) -> float | None:
        """The reward of a completed trial of a study with one objective; else None."""
        return self.final.reward if self.final is not None else None

    @property
    def scores(self) -> tuple[float, ...]:
        """The rewards, signed such that more is better."""
        return tuple(map(operator.mul, self.rewards, self._study.signs))

    def scores_at(self, step: int) -> tuple[float, ...]:
        """The scores that it had come to at a step; none where it had no rewards by then."""
        known = [each for each in self._rewarded() if each.step <= step]
        return tuple(map(operator.mul, known[-1].rewards, self._study.signs)) if known else ()

    @property
    def parent(self) -> int | None:
        """The number of the trial that the algorithm derived this one from."""
        return self._number('parent')

    @functools.cached_property
    def retry_of(self) -> int | None:
        """The number of the trial that this one does again, with the same seeds."""
        return self._number('retry_of')

    @functools.cached_property
    def repeat(self) -> int:
        """Which of the trials of its decisions it is, from 1: each trains with other seeds."""
        return self._number('repeat') or 1

    @functools.cached_property
    def repeat_of(self) -> int | None:
        """The number of the trial whose decisions this one tries with other seeds."""
        return None if self.is_imported else self._number('repeat_of')

    @property
    def repeat_of_imported(self) -> str | None:
        """The same of a trial that ran in another study: the origin of that trial."""
        number = self._number('repeat_of') if self.is_imported else None
        return None if number is None else f'{self.origin.rpartition("#")[0]}#{number}'

    @property
    def warm_start(self) -> int | None:
        """The number of the trial whose weights this one begins with."""
        return self._number('warm_start')

    @functools.cached_property
    def forked_from(self) -> tuple[int, int] | None:
        """The trial and the step that a scheduler forked this one from; None if it was not.

        It began with all that trial had come to: weights, optimizer, and position in the data.
        """
        trial, _, step = (self._note('forked_from') or '').partition('@')
        return (int(trial), int(step)) if trial else None

    @property
    def goes_on_from(self) -> tuple[int, int] | None:
        """The trial, and the step, whose state it is to begin with; None if it begins afresh.

        That is where it was paused itself, or else where it was forked from another trial.
        """
        return (self.id, self.pauses[-1]) if self.pauses else self.forked_from

    @property
    def replaces(self) -> int | None:
        """The number of the trial whose place in a population this one took."""
        return self._number('replaces')

    @property
    def weights_from(self) -> tuple[int, int | None] | None:
        """The trial, and the step, that its weights came from; None where it began afresh.

        The step is None where the trial has not begun.
        """
        if self.forked_from is not None or self.warm_start is None:
            return self.forked_from
        return self.warm_start, self._number('warm_start_step')

    @property
    def costs(self) -> dict[str, dict[str, float]]:
        """What was measured of it before its first step, by the name of the sub-experiment.

        The first attempt measures, for all: no two measurements are the same.
        """
        return _read_json(self._proto, 'costs')

    @property
    def is_paused(self) -> bool:
        """Whether a scheduler has put it aside, until it is promoted or the study ends."""
        return trial_state.is_paused(self._proto)

    @property
    def paused_at(self) -> int | None:
        """The step at which a scheduler has put it aside; None where it is not."""
        return trial_state.paused_at(self._proto)

    @functools.cached_property
    def pauses(self) -> list[int]:
        """The steps at which a scheduler has paused it, by step; that of now is among them."""
        return trial_state.pauses(self._proto)

    @property
    def origin(self) -> str:
        """Where the decisions are from.

        That is 'algorithm', 'scheduler', 'seed', 'added', 'retry', 'repeat', or a study.
        """
        return self._note('origin') or 'algorithm'

    @property
    def is_imported(self) -> bool:
        """Whether it ran in another study."""
        return '#' in self.origin

    @property
    def stop_reason(self) -> str | None:
        """Why the trial was stopped early; None if it was not."""
        return self._note('stopped')

    @property
    def infeasible_reason(self) -> str | None:
        """Why the trial is infeasible; None if it is not."""
        return self._proto.infeasible_reason if self.state == 'INFEASIBLE' else None

    @property
    def reason(self) -> str | None:
        """Why the trial ended as it did, where there is something to say."""
        return self.stop_reason or self.infeasible_reason or self._note('concluded')

    @property
    def is_failed(self) -> bool:
        """Whether an error made the trial infeasible."""
        return self.state == 'INFEASIBLE' and self._note('failed') is not None

    @property
    def created(self) -> datetime.datetime:
        """When the trial was suggested."""
        created: datetime.datetime = self._proto.start_time.ToDatetime(datetime.UTC)
        return created

    @property
    def completed(self) -> datetime.datetime | None:
        """When the trial reached its final state."""
        if not self.is_terminal:
            return None
        ended: datetime.datetime = self._proto.end_time.ToDatetime(datetime.UTC)
        return ended

    @property
    def seconds(self) -> float:
        """How long it ran, all attempts together, as far as its runner has noted."""
        return float(self._note('seconds') or 0.0)

    @property
    def devices(self) -> int:
        """On how many devices it ran; 0 where it did not."""
        return int(self._note('devices') or 0)

    @property
    def attempt(self) -> int:
        """The number of the attempt that counts, from 1: see `paxtune.study.trial_state`."""
        return trial_state.attempt(self._proto)

    @property
    def holder(self) -> str:
        """The worker that the trial was given to; '' for none."""
        return trial_state.holder(self._proto)

    @property
    def history(self) -> list[dict[str, Any]]:
        """What happened to the trial: `time` (ISO, UTC), `event`, `attempt`, `worker`, `detail`."""
        return trial_state.history(self._proto)

    def record(self, event: str, **details: str) -> None:
        """Adds to the history."""
        self._update(
            lambda proto: trial_state.record(
                proto, event, worker=trial_state.holder(proto), **details
            )
        )

    def pause(self, step: int, why: str) -> None:
        """Puts the trial aside: see `paxtune.schedulers`.

        Args:
            step: the step that it has saved.
            why: for people.

        Raises:
            RuntimeError: the trial is not ACTIVE.
        """

        def change(proto: TrialProto) -> None:
            self._require_active(proto)
            trial_state.pause(proto, step, why)

        self._update(change)

    def promote(self, why: str) -> None:
        """Ends a pause: whoever asks for a trial next is given this one.

        Raises:
            RuntimeError: the trial is not paused, or not any more.
        """

        def change(proto: TrialProto) -> None:
            if not trial_state.is_paused(proto):
                raise RuntimeError(f'trial {self.id} is {outcome(proto)}: it is not paused')
            trial_state.promote(proto, why)

        self._update(change)

    def release(self, why: str) -> None:
        """Gives the trial back, which is to go on later."""
        self._update(lambda proto: trial_state.release(proto, why))

    def lose(self, loss: trial_state.Loss) -> None:
        """Gives the trial back: for another attempt, or as infeasible after the last one."""
        most = self._study.search.max_attempts
        self._set(self._study.store.lose(self.id, loss, most, self.step))

    @property
    def open_at_start(self) -> dict[int, int | None] | None:
        """The earlier trials that had not ended when it began; None where that is not noted.

        With each, the step at which it was paused then; None where it was not.
        """
        return prefetch.open_at_start(self._proto)

    @property
    def is_ahead(self) -> bool:
        """Whether it is a suggestion that was made ahead, and nobody has begun."""
        return self.state == 'REQUESTED' and self._note(prefetch.AHEAD) is not None

    @property
    def non_finite_metrics(self) -> list[str]:
        """Metrics that were NaN or infinite at some step and are left out there."""
        return sorted(_read_json(self._proto, 'non_finite'))

    @property
    def metadata(self) -> dict[str, str]:
        """What `set_metadata` wrote, as it stands now."""
        stored = notes(self._study.store.trial(self.id))
        return {
            key.removeprefix('user:'): value
            for key, value in stored.items()
            if key.startswith('user:')
        }

    @property
    def memo(self) -> dict[str, str]:
        """What the algorithm noted when it suggested the trial."""
        return {
            key.removeprefix(MEMO): value
            for key, value in notes(self._proto).items()
            if key.startswith(MEMO)
        }

    def set_metadata(self, values: Mapping[str, str]) -> None:
        """Adds to the trial's metadata, in any state."""
        self.note(**{f'user:{key}': value for key, value in values.items()})

    def note(self, **values: str) -> None:
        """Writes notes of paxtune's own."""
        self._update(lambda proto: write_notes(proto, values))

    def note_costs(self, measured: Mapping[str, Mapping[str, float]]) -> None:
        """Notes what `costs` returns from now on."""
        if measured != self.costs:
            self.note(costs=json.dumps(measured))

    def report(
        self, step: int, metrics: Mapping[str, float], checkpoint: str | None = None
    ) -> Measurement:
        """Adds what was measured at a step.

        A resumed trial comes by steps that it reported before: those are left as they are.

        Args:
            step: the training step.
            metrics: all metrics by name. Of them, NaN and infinity are left out, and their names
                noted (`non_finite_metrics`).
            checkpoint: where the weights of this step are.

        Returns:
            The measurement. It has no rewards while a metric that they need is still to come.

        Raises:
            NonFiniteRewardError: the reward is NaN or infinite. Nothing is written.
            RuntimeError: the trial is not ACTIVE.
        """
        for name in metrics:
            if name.startswith('$'):
                raise ValueError(f'no metric can be called {name!r}: names with $ are for rewards')
        self._refresh()
        self._require_active(self._proto)
        self.step = step
        for measurement in self.measurements:
            if measurement.step == step:
                return measurement
        rewards = self._rewards_of(with_carried(self.measurements, metrics))
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        measurement = Measurement(step, finite, rewards, checkpoint)
        notes: dict[str, dict[str, Any]] = {
            'non_finite': {name: step for name in sorted({*metrics} - {*finite})},
            'checkpoints': {} if checkpoint is None else {str(step): checkpoint},
        }

        def change(proto: TrialProto) -> None:
            self._require_active(proto)
            for key, added in notes.items():
                if added:
                    write_notes(proto, {key: json.dumps(_read_json(proto, key) | added)})
            proto.measurements.append(to_proto(measurement))

        self._update(change)
        return measurement

    def _rewards_of(self, metrics: Mapping[str, float]) -> tuple[float, ...]:
        study = self._study
        return measured_rewards(study.rewards, metrics, study.sub_experiments)

    def final_metrics(self) -> dict[str, float]:
        """The metrics that the trial would end with now, by the search's `cross_step`.

        One that was not finite whenever it was measured is NaN; so is one that was not finite the
        last time, where the last time is what counts.

        Raises:
            NothingMeasuredError: nothing was measured.
        """
        search = self._study.search
        score = search.rewards[0].score if len(search.rewards) == 1 else None
        final = final_metrics(search.cross_step, self.measurements, score)
        finite = {name: each.step for each in self.measurements for name in each.metrics}
        for name, step in _read_json(self._proto, 'non_finite').items():
            is_last = isinstance(search.cross_step, LastStep) and step > finite.get(name, -1)
            if name not in final or is_last:
                final[name] = math.nan
        return final

    def complete(self) -> None:
        """Finishes the trial: its measurements become its final metrics, and these its rewards.

        Raises:
            NonFiniteRewardError: a reward is NaN or infinite.
            MissingMetricError: a reward needs a metric that was not measured.
            RuntimeError: the trial is not ACTIVE, or nothing was measured.
        """
        self._refresh()
        self._require_active(self._proto)
        try:
            metrics = self.final_metrics()
        except NothingMeasuredError as error:
            raise RuntimeError(f'trial {self.id} cannot be completed: {error}') from error
        rewards = tuple(reward.value(metrics) for reward in self._study.rewards)
        self._end(Measurement(self.measurements[-1].step, metrics, rewards))

    def stop(self, reason: str) -> None:
        """Finishes the trial early, with its last measurement. It will not be the best.

        Raises:
            RuntimeError: the trial is not ACTIVE, or no reward was measured.
        """
        self._refresh()
        self._require_active(self._proto)
        if not self.is_rewarded:
            raise RuntimeError(
                f'trial {self.id} cannot be stopped: nothing was measured that has a reward'
            )
        last = self._rewarded()[-1]
        known = with_carried(self.measurements, last.metrics)
        self._end(Measurement(last.step, known, last.rewards), stopped=reason)

    def end_early(self, reason: str) -> None:
        """Stops the trial; it is infeasible where nothing was measured that has a reward.

        Raises:
            RuntimeError: the trial is not ACTIVE.
        """
        if self.is_rewarded:
            self.stop(reason)
        else:
            self.fail(f'{reason} (before a reward was measured)')

    @property
    def is_rewarded(self) -> bool:
        """Whether something was measured that has a reward, so that the trial can be stopped."""
        return bool(self._rewarded())

    def _rewarded(self) -> list[Measurement]:
        needed = len(self._study.rewards)
        return [each for each in self.measurements if len(each.rewards) == needed]

    def conclude(
        self,
        reason: str,
        reward: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Finishes the trial with another reward, or with other metrics to make the reward of.

        Args:
            reason: for people.
            reward: the reward, for a study with one.
            metrics: metrics that take the place of those that were measured.

        Raises:
            NonFiniteRewardError: the reward is NaN or infinite.
            RuntimeError: the trial is not ACTIVE.
        """
        self._refresh()
        self._require_active(self._proto)
        last = self.measurements[-1].metrics if self.measurements else {}
        known = {**with_carried(self.measurements, last), **(metrics or {})}
        if reward is None:
            rewards = self._rewards_of(known)
        elif len(self._study.rewards) != 1:
            raise RuntimeError('a reward can be given only in a study that has one')
        elif not math.isfinite(reward):
            raise NonFiniteRewardError(f'the reward is {reward}')
        else:
            rewards = (reward,)
        if len(rewards) < len(self._study.rewards):
            self.fail(f'{reason} (before a reward was measured)')
            return
        step = max([self.step, *(each.step for each in self.measurements)])
        self._end(Measurement(step, known, rewards), concluded=reason)

    def fail(self, reason: str, is_error: bool = False) -> None:
        """Finishes the trial as infeasible: no reward can be said to belong to its decisions.

        Args:
            reason: for people.
            is_error: whether an error is the reason; see `Search.max_failures`.

        Raises:
            RuntimeError: the trial is not ACTIVE.
        """

        def change(proto: TrialProto) -> None:
            self._require_active(proto)
            if trial_state.is_paused(proto):
                write_notes(proto, {'waits': ''})
            proto.state = TrialProto.State.INFEASIBLE
            proto.infeasible_reason = reason
            proto.end_time.GetCurrentTime()
            if is_error:
                write_notes(proto, {'failed': 'true'})
            _record_end(proto, f'infeasible: {reason}')

        self._update(change)

    def _end(self, final: Measurement, **why: str) -> None:
        # Before NaN is left out: it is within no limit.
        if reason := violation(self._study.search.limits, final.metrics):
            self.fail(reason)
            return
        finite = {name: value for name, value in final.metrics.items() if math.isfinite(value)}
        final = dataclasses.replace(final, metrics=finite)

        def change(proto: TrialProto) -> None:
            self._require_active(proto)
            write_notes(proto, {'waits': '', **why} if trial_state.is_paused(proto) else why)
            proto.final_measurement.CopyFrom(to_proto(final))
            proto.state = TrialProto.State.SUCCEEDED
            proto.end_time.GetCurrentTime()
            how, reason = next(iter(why.items()), ('completed', ''))
            _record_end(proto, f'{how}: {reason}' if reason else how)

        self._update(change)

    def _require_active(self, proto: TrialProto) -> None:
        state = STATES[proto.state]
        if state != 'ACTIVE':
            raise RuntimeError(f'trial {self.id} is {state} already')

    def _note(self, key: str) -> str | None:
        return note(self._proto, key)

    def _number(self, key: str) -> int | None:
        value = self._note(key)
        return int(value) if value else None

    def _refresh(self) -> None:
        self._set(self._study.store.trial(self.id))

    def _update(self, change: Callable[[TrialProto], None]) -> None:
        self._set(self._study.store.update_trial(self.id, change))

    def _set(self, proto: TrialProto) -> None:
        self._proto = proto
        for name in ('measurements', 'final', 'pauses'):
            self.__dict__.pop(name, None)


def _record_end(proto: TrialProto, how: str) -> None:
    trial_state.record(proto, 'ended', worker=trial_state.holder(proto), detail=how)
    write_notes(proto, {'holder': ''})


def _read_json(proto: TrialProto, key: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(note(proto, key) or '{}')
    return content
