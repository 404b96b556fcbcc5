"""Read-only views of trials."""

import dataclasses
import datetime
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from paxtune.objectives.aggregation import LastStep, MetricAggregation, final_metrics
from paxtune.objectives.limits import Limit
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import MissingMetricError
from paxtune.objectives.rewards import Reward
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study.attributes import Attributes
from paxtune.study.record import Lineage, Status, TrialRecord
from trainer.runtime.directory import JobPath, trial_directory_name
from trainer.symbolic.errors import UserError
from trainer.symbolic.html import html_table

TRIALS = 'trials'
"""The folder of trial directories in the directory of the study."""

State: TypeAlias = Literal['REQUESTED', 'ACTIVE', 'COMPLETED', 'INFEASIBLE']

_STATES: dict[Status, State] = {
    Status.REQUESTED: 'REQUESTED',
    Status.ACTIVE: 'ACTIVE',
    Status.PAUSED: 'ACTIVE',
    Status.COMPLETED: 'COMPLETED',
    Status.STOPPED: 'COMPLETED',
    Status.INFEASIBLE: 'INFEASIBLE',
}


@dataclasses.dataclass(frozen=True)
class Scoring:
    """A rule from the metrics of a trial to its rewards.

    Attributes:
        rewards: one for each objective.
        aggregation: how measurements become final metrics.
        limits: bounds that final metrics must keep to.
        sub_experiments: names of the experiments that a trial trains in order; empty for one.
    """

    rewards: Sequence[Reward]
    aggregation: MetricAggregation
    limits: Sequence[Limit]
    sub_experiments: Sequence[str]


@dataclasses.dataclass(frozen=True)
class TrialContext:
    """Values of a study that all of its trials share.

    Attributes:
        signs: factors that turn rewards into scores, where more is better: 1.0 or -1.0 for each.
        space: the search space; None if the classes of the experiment are not at hand.
        read_parameters: turns stored parameters into decisions by id.
        directory: of the study; None in memory.
    """

    signs: Sequence[float]
    space: Space | None = None
    read_parameters: Callable[[Mapping[str, str | float]], Decisions] | None = None
    directory: JobPath | None = None


class Trial:
    """A trial as it stood when it was read. Nothing changes it: see `RunningTrial`.

    Attributes:
        id: the trial's number in the study, from 1.
        record: everything that the study stores of it.
    """

    def __init__(self, record: TrialRecord, context: TrialContext) -> None:
        self.id = record.id
        self.record = record
        self._context = context

    def __repr__(self) -> str:
        return f'Trial({self.id}, {self.state}, {self.decisions})'

    def _repr_html_(self) -> str:
        rewards = ', '.join(f'{each:.6g}' for each in self.rewards)
        facts: dict[str, object] = {'state': self.status, 'reward': rewards}
        facts |= {'reason': self.reason, 'attempt': self.attempt, 'directory': self.directory}
        metrics = {f'metrics.{name}': value for name, value in self.metrics.items()}
        attributes = {f'attributes.{name}': value for name, value in self.attributes.items()}
        known = {name: value for name, value in facts.items() if value not in (None, '')}
        rows = (known | dict(self.decisions) | metrics | attributes).items()
        return html_table(f'Trial {self.id}', ['', ''], rows)

    @property
    def state(self) -> State:
        """Vizier's state. A trial that was stopped early is COMPLETED, a paused one ACTIVE."""
        return _STATES[self.record.status]

    @property
    def status(self) -> Status:
        """Returns the full state: also stopped or completed, and paused or active."""
        return self.record.status

    @property
    def is_terminal(self) -> bool:
        """Returns True if the trial has ended."""
        return self.record.status.has_ended

    @functools.cached_property
    def by_id(self) -> Decisions:
        """Decisions by the id of their decision point, as algorithms see them."""
        assert self._context.read_parameters is not None
        try:
            return self._context.read_parameters(self.record.parameters)
        except ValueError as error:
            raise UserError(f'trial {self.id} is not of this search space: {error}') from error

    @functools.cached_property
    def decisions(self) -> dict[str, Any]:
        """Decisions as {path in the trial's experiment: plain value or short name}."""
        return self._space.readable(self.by_id)

    @property
    def _space(self) -> Space:
        assert self._context.space is not None
        return self._context.space

    def materialize(self) -> Any:
        """Makes the trial's experiment: every decision made, with the seeds of its replicate.

        Raises:
            ValueError: a component's `check` rejects the values.
        """
        made = self._space.materialize(self.by_id)
        if self.lineage.replicate == 1 or not self._space.is_tunable:
            return made
        # Imported here: a study of a function needs no trainer.
        from paxtune.study.trial_experiments import reseeded

        return reseeded(made, self.lineage.replicate)

    @property
    def directory(self) -> JobPath | None:
        """The directory of the trial, for files of all its attempts; None in memory.

        It is there when the trial runs. Checkpoints in its folder `checkpoints` are removed as
        `Search.retention` says.
        """
        home = self._context.directory
        return None if home is None else directory_in(home, self)

    @property
    def lineage(self) -> Lineage:
        """Relations to other trials: parent, replicates, warm starts, forks."""
        return self.record.lineage

    @functools.cached_property
    def measurements(self) -> list[Measurement]:
        """Measurements by step."""
        return sorted(self.record.measurements, key=lambda measurement: measurement.step)

    @property
    def final(self) -> Measurement | None:
        """Final metrics and rewards; None unless COMPLETED."""
        return self.record.final

    @property
    def metrics(self) -> Mapping[str, float]:
        """Final metrics; before the end, the metrics of the last measurement."""
        if self.final is not None:
            return self.final.metrics
        return self.measurements[-1].metrics if self.measurements else {}

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of a completed trial, one for each objective; else none."""
        return () if self.final is None else self.final.rewards

    @property
    def reward(self) -> float | None:
        """The reward of a completed trial with one objective; else None."""
        return None if self.final is None else self.final.reward

    @property
    def scores(self) -> tuple[float, ...]:
        """Rewards, signed for more to be better."""
        return self._signed(self.rewards)

    @functools.cached_property
    def score_curve(self) -> dict[int, tuple[float, ...]]:
        """Scores by step, of the measurements that have all rewards."""
        needed = len(self._context.signs)
        measured = (each for each in self.measurements if len(each.rewards) == needed)
        return {each.step: self._signed(each.rewards) for each in measured}

    def _signed(self, rewards: Sequence[float]) -> tuple[float, ...]:
        return tuple(map(operator.mul, rewards, self._context.signs))

    @property
    def continues_from(self) -> tuple[int, int] | None:
        """The trial and the step whose state this one begins with; None for a fresh start.

        That is the step of its own last pause, or else the trial that it was forked from.
        """
        pauses = self.record.pauses
        return (self.id, pauses[-1]) if pauses else self.lineage.forked_from

    @property
    def stop_reason(self) -> str | None:
        """Why the trial was stopped early; None if it was not."""
        return self.record.reason if self.record.status is Status.STOPPED else None

    @property
    def reason(self) -> str | None:
        """Why the trial ended as it did, where there is a reason."""
        return self.record.reason

    @property
    def is_failed(self) -> bool:
        """Returns True if an error made the trial infeasible."""
        return self.record.status is Status.INFEASIBLE and self.record.is_failed

    @property
    def created(self) -> datetime.datetime:
        """The time at which the trial was suggested."""
        assert self.record.created is not None
        return self.record.created

    @property
    def completed(self) -> datetime.datetime | None:
        """The time at which the trial ended; None before."""
        return self.record.ended if self.is_terminal else None

    @property
    def seconds(self) -> float:
        """The run time of all attempts, in seconds."""
        return self.record.run_time.seconds

    @property
    def attempt(self) -> int:
        """The 1-based number of the current attempt: see `paxtune.study.transitions`."""
        return self.record.attempt

    @property
    def history(self) -> list[dict[str, Any]]:
        """Events as plain data: `time` (ISO, UTC), `event`, `attempt`, `worker`, `detail`."""
        return [event.to_json() for event in self.record.history]

    @property
    def attributes(self) -> Attributes:
        """Small values that programs set, by name: see `RunningTrial.set_attribute`."""
        return self.record.attributes


def directory_in(home: JobPath, trial: Trial) -> JobPath:
    """Returns the directory of a trial."""
    return home / TRIALS / trial_directory_name(trial.id, trial.decisions)


def aggregated(trial: Trial, scoring: Scoring) -> dict[str, float]:
    """Computes the metrics that a trial would end with now.

    A metric that was never finite is NaN. So is one whose last value was not finite, where the
    last step counts.

    Raises:
        NothingMeasuredError: nothing was measured.
    """
    rewards = scoring.rewards
    score = rewards[0].score if len(rewards) == 1 else None
    try:
        final = final_metrics(scoring.aggregation, trial.measurements, score)
    except MissingMetricError:  # Measurements have no NaN, so it may look as if it did not exist.
        never = [
            Measurement(step, {name: math.nan}) for name, step in trial.record.non_finite.items()
        ]
        final = final_metrics(scoring.aggregation, [*trial.measurements, *never], score)
    finite = {name: each.step for each in trial.measurements for name in each.metrics}
    for name, step in trial.record.non_finite.items():
        is_last = isinstance(scoring.aggregation, LastStep) and step > finite.get(name, -1)
        if name not in final or is_last:
            final[name] = math.nan
    return final
