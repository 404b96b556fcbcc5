"""Early stopping for a study of Vizier clients, by the median rule."""

from collections.abc import Sequence

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers.base import State, TrialCurve
from paxtune.schedulers.median import MedianStopping
from paxtune.storage.codec import StudySpec, TrialProto
from paxtune.vizier_service.metrics import MetricSpec, objectives, value

_STATES: dict[int, State] = {
    TrialProto.State.REQUESTED: 'waiting',
    TrialProto.State.ACTIVE: 'running',
    TrialProto.State.STOPPING: 'running',
    TrialProto.State.SUCCEEDED: 'completed',
}


def should_stop(spec: StudySpec, trial: TrialProto, others: Sequence[TrialProto]) -> bool:
    """Returns True if a running trial is worse than the median of the others at its last step.

    Never without an `automated_stopping_config`, with several metrics, or before a measurement.
    Seconds take the place of steps where measurements have no steps.

    Args:
        spec: of the study.
        trial: a running one.
        others: all other trials of the study.
    """
    metrics = objectives(spec)
    if len(metrics) != 1 or not spec.HasField('default_stopping_spec') or not trial.measurements:
        return False
    has_steps = any(each.step_count for each in trial.measurements)
    is_minimized = metrics[0].goal == MetricSpec.MINIMIZE
    reward = MetricReward('minimize' if is_minimized else 'maximize', metrics[0].metric_id)
    rule = MedianStopping(unit='steps' if has_steps else 'seconds')
    curves = [_curve(each, metrics[0], has_steps) for each in others if each.state in _STATES]
    return rule.decide(_curve(trial, metrics[0], has_steps), curves, reward) is not None


def _curve(trial: TrialProto, metric: MetricSpec, has_steps: bool) -> TrialCurve:
    measurements, resources = [], []
    for each in trial.measurements:
        number = value(each, metric)
        rewards = () if number is None else (number,)
        measurements.append(Measurement(each.step_count, {}, rewards))
        elapsed = each.elapsed_duration
        resources.append(each.step_count if has_steps else elapsed.seconds + elapsed.nanos / 1e9)
    return TrialCurve(int(trial.id), _STATES[trial.state], measurements, resources)
