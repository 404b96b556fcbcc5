"""One trial of a study."""

import datetime
import functools
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

import pyglove as pg
from vizier import pyvizier as vz
from vizier._src.service import vizier_client

from paxtune.decisions import Decisions, to_dna
from paxtune.measurement import Measurement
from paxtune.parameters import from_parameters
from paxtune.rewards import Reward
from paxtune.space import Space
from paxtune.study_record import NAMESPACE, REWARD

State = Literal['REQUESTED', 'ACTIVE', 'COMPLETED', 'INFEASIBLE']


class Trial:
    """A trial as it stands in the study, and the ways to move it on.

    It leaves the state ACTIVE exactly once: by `complete`, `stop` or `fail`.

    Attributes:
        resumed: it was handed out before, and that process did not finish it.
        step: the step that this process reported last; 0 before.
    """

    def __init__(
        self,
        record: vz.Trial,
        space: Space,
        reward: Reward,
        client: vizier_client.VizierClient,
        resumed: bool = False,
    ) -> None:
        self._record = record
        self._space = space
        self._reward = reward
        self._client = client
        self.resumed = resumed
        self.step = 0

    def __repr__(self) -> str:
        return f'Trial({self.id}, {self.state}, {self.decisions})'

    @property
    def id(self) -> int:
        """The trial's number in the study, from 1."""
        return int(self._record.id)

    @property
    def state(self) -> State:
        """Where the trial stands. One that was stopped early is COMPLETED."""
        if self._record.infeasible:
            return 'INFEASIBLE'
        if self._record.final_measurement is not None:
            return 'COMPLETED'
        return 'REQUESTED' if self._record.is_requested else 'ACTIVE'

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens to the trial."""
        return self.state in ('COMPLETED', 'INFEASIBLE')

    @functools.cached_property
    def _by_id(self) -> Decisions:
        return from_parameters(self._space.spec, self._record.parameters.as_dict())

    @functools.cached_property
    def decisions(self) -> dict[str, Any]:
        """{path in the trial's experiment: plain value or short name}."""
        return self._space.readable(self._by_id)

    @property
    def dna(self) -> pg.DNA:
        """The decisions in PyGlove's form."""
        return to_dna(self._space.spec, self._by_id)

    def materialize(self) -> Any:
        """The trial's experiment: the study's, with every decision made.

        Raises:
            ValueError: the decisions do not fit together, says a component's `check`.
        """
        return self._space.materialize(self._by_id)

    @functools.cached_property
    def measurements(self) -> list[Measurement]:
        """What was measured, by step."""
        found = [_measurement(each) for each in self._record.measurements]
        return sorted(found, key=lambda measurement: measurement.step)

    @property
    def reward(self) -> float | None:
        """The reward of a completed trial: that of its last measurement."""
        final = self._record.final_measurement
        if final is None or self._record.infeasible:
            return None
        return float(final.metrics[REWARD].value)

    @property
    def parent(self) -> int | None:
        """The number of the trial that the algorithm derived this one from."""
        parent = self._note('parent')
        return None if parent is None else int(parent)

    @property
    def stop_reason(self) -> str | None:
        """Why the trial was stopped early; None if it was not."""
        return self._note('stopped')

    @property
    def infeasible_reason(self) -> str | None:
        """Why the trial is infeasible; None if it is not."""
        reason: str | None = self._record.infeasibility_reason
        return reason

    @property
    def created(self) -> datetime.datetime:
        """When the trial was suggested."""
        naive: Any = self._record.creation_time
        created: datetime.datetime = naive.astimezone(datetime.UTC)
        return created

    @property
    def completed(self) -> datetime.datetime | None:
        """When the trial reached its final state."""
        completed = self._note('completed')
        terminal = completed is not None and self.is_terminal
        return datetime.datetime.fromisoformat(str(completed)) if terminal else None

    @property
    def non_finite_metrics(self) -> list[str]:
        """Metrics that were NaN or infinite at some step and are left out there."""
        names: list[str] = json.loads(self._note('non_finite') or '[]')
        return names

    @property
    def metadata(self) -> dict[str, str]:
        """What `set_metadata` wrote, as it stands now."""
        metadata = self._client.get_trial(self.id).metadata
        return dict(metadata.ns(NAMESPACE).ns('trial').items())

    def set_metadata(self, values: Mapping[str, str]) -> None:
        """Adds to the trial's metadata, in any state."""
        metadata = vz.Metadata()
        metadata.ns(NAMESPACE).ns('trial').update(values.items())
        self._write(metadata)

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds what was measured at a step.

        A resumed trial comes by steps that it reported before: those are left as they are.

        Args:
            step: the training step.
            metrics: all metrics by name. Of them, NaN and infinity are left out, and their names
                noted (`non_finite_metrics`).

        Raises:
            NonFiniteRewardError: the reward is NaN or infinite. Nothing is written.
            UserError: the reward needs a metric that is not there.
            RuntimeError: the trial is not ACTIVE.
        """
        if REWARD in metrics:
            raise ValueError(f'no metric can be called {REWARD!r}: the reward itself has that name')
        self._require_active()
        self.step = step
        if any(measurement.step == step for measurement in self.measurements):
            return
        reward = self._reward.value(metrics)
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        dropped = sorted({*metrics} - {*finite} - {*self.non_finite_metrics})
        if dropped:
            self._write_notes(non_finite=json.dumps(self.non_finite_metrics + dropped))
        measured: list[Mapping[str, float]] = [finite | {REWARD: reward}]
        self._update(self._client.report_intermediate_objective_value(step, 0.0, measured, self.id))

    def complete(self) -> None:
        """Finishes the trial with its last measurement.

        Raises:
            RuntimeError: the trial is not ACTIVE, or nothing was measured.
        """
        self._require_active()
        self._complete()

    def stop(self, reason: str) -> None:
        """Finishes the trial early, with its last measurement. It will not be the best.

        Raises:
            RuntimeError: the trial is not ACTIVE, or nothing was measured.
        """
        self._require_active()
        self._require_measurements()
        # First the mark: without it, a trial that is cut off in between would pass for a full one.
        self._write_notes(stopped=reason)
        self._complete()

    def finish_stopping(self) -> None:
        """Completes a trial whose process died in the middle of `stop`."""
        self._complete()

    def fail(self, reason: str) -> None:
        """Finishes the trial as infeasible: no reward can be said to belong to its decisions.

        Raises:
            RuntimeError: the trial is not ACTIVE.
        """
        self._require_active()
        self._write_notes(completed=_now())
        self._update(self._client.complete_trial(self.id, infeasibility_reason=reason))

    def _complete(self) -> None:
        self._require_measurements()
        self._write_notes(completed=_now())
        last = max(self._record.measurements, key=lambda measurement: measurement.steps)
        self._update(self._client.complete_trial(self.id, last))

    def _require_active(self) -> None:
        self._update(self._client.get_trial(self.id))
        if self.state != 'ACTIVE':
            raise RuntimeError(f'trial {self.id} is {self.state} already')

    def _require_measurements(self) -> None:
        if not self._record.measurements:
            raise RuntimeError(f'trial {self.id} cannot be completed: nothing was measured')

    def _note(self, key: str) -> str | None:
        own: Any = self._record.metadata.ns(NAMESPACE)
        value: str | None = own.get(key)
        return value

    def _write_notes(self, **notes: str) -> None:
        metadata = vz.Metadata()
        metadata.ns(NAMESPACE).update(notes.items())
        self._write(metadata)

    def _write(self, metadata: vz.Metadata) -> None:
        self._client.update_metadata(vz.MetadataDelta(on_trials={self.id: metadata}))
        self._update(self._client.get_trial(self.id))

    def _update(self, record: vz.Trial) -> None:
        self._record = record
        self.__dict__.pop('measurements', None)


def _measurement(measurement: vz.Measurement) -> Measurement:
    metrics = {name: float(metric.value) for name, metric in measurement.metrics.items()}
    reward = metrics.pop(REWARD)
    return Measurement(int(measurement.steps), metrics, reward)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()
