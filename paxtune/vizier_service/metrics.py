"""Objectives of a Vizier study, and the scores of its trials."""

import math
from collections.abc import Sequence
from typing import TypeAlias

from vizier._src.service import study_pb2

from paxtune.objectives import pareto
from paxtune.storage.codec import StudySpec, TrialProto

MetricSpec: TypeAlias = study_pb2.StudySpec.MetricSpec


def objectives(spec: StudySpec) -> list[MetricSpec]:
    """The metrics to optimize: all but safety metrics, which algorithms here do not use."""
    return [metric for metric in spec.metrics if not metric.HasField('safety_config')]


def value(measurement: study_pb2.Measurement, metric: MetricSpec) -> float | None:
    """The finite value of a metric; None if there is none."""
    found = [each.value for each in measurement.metrics if each.metric_id == metric.metric_id]
    return found[-1] if found and math.isfinite(found[-1]) else None


def scores(spec: StudySpec, trial: TrialProto) -> tuple[float, ...] | None:
    """The final metrics, signed so that more is better; None unless all of them are finite."""
    found = []
    for metric in objectives(spec):
        number = value(trial.final_measurement, metric)
        if number is None:
            return None
        found.append(-number if metric.goal == MetricSpec.MINIMIZE else number)
    return tuple(found)


def optimal(spec: StudySpec, trials: Sequence[TrialProto]) -> list[TrialProto]:
    """The completed trials that no other one is better than in all objectives."""
    ended = [each for each in trials if each.state == TrialProto.State.SUCCEEDED]
    scored = [(each, found) for each in ended if (found := scores(spec, each)) is not None]
    if not objectives(spec):
        return []
    return [scored[index][0] for index in pareto.front([found for _, found in scored])]
