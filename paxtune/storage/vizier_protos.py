"""Studies and trials as Vizier keeps them."""

from collections.abc import Mapping, Sequence

import pyglove as pg
from vizier._src.service import study_pb2

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import Reward
from paxtune.search_space.decisions import Decisions
from paxtune.storage.vizier_space import to_parameters, to_search_space
from paxtune.storage.vizier_store import STATES, StudySpec, TrialProto, note, write_notes
from paxtune.study import trial_state

OUTCOMES = ('completed', 'stopped', 'infeasible', 'active', 'paused', 'requested')

_REWARD = '$reward'


def reward_names(count: int) -> list[str]:
    """What Vizier knows the rewards of a study by; no metric's name begins with $."""
    return [_REWARD if i == 0 else f'{_REWARD}.{i}' for i in range(count)]


def is_reward(name: str) -> bool:
    """Whether Vizier's metric of that name is a reward."""
    return name.startswith(_REWARD)


def outcome(proto: TrialProto) -> str:
    """The state of a trial in one of the words of `OUTCOMES`."""
    if note(proto, 'stopped') is not None:
        return 'stopped'
    return 'paused' if trial_state.is_paused(proto) else STATES[proto.state].lower()


def study_spec(
    algorithm: str, rewards: Sequence[Reward], space: pg.DNASpec, notes: Mapping[str, str]
) -> StudySpec:
    """What is said of a study when it is made."""
    spec = StudySpec(algorithm=algorithm)
    goals = StudySpec.MetricSpec.GoalType
    for name, reward in zip(reward_names(len(rewards)), rewards, strict=True):
        spec.metrics.add(metric_id=name, goal=goals.Value(reward.goal.upper()))
    spec.parameters.extend(to_search_space(space))
    write_notes(spec, notes)
    return spec


def new_trial(
    space: pg.DNASpec, decisions: Decisions, notes: Mapping[str, str], state: int
) -> TrialProto:
    """A trial without a number."""
    proto = TrialProto(state=state)
    for name, value in to_parameters(space, decisions).items():
        parameter = proto.parameters.add(parameter_id=name)
        if isinstance(value, str):
            parameter.value.string_value = value
        else:
            parameter.value.number_value = value
    write_notes(proto, notes)
    return proto


def to_proto(measurement: Measurement) -> study_pb2.Measurement:
    """A measurement as Vizier keeps it."""
    proto = study_pb2.Measurement(step_count=measurement.step)
    named = zip(reward_names(len(measurement.rewards)), measurement.rewards, strict=False)
    for name, value in [*named, *measurement.metrics.items()]:
        proto.metrics.add(metric_id=name, value=value)
    return proto


def to_measurement(
    proto: study_pb2.Measurement, num_rewards: int, checkpoints: Mapping[str, str]
) -> Measurement:
    """What `to_proto` was made of.

    Args:
        proto: as Vizier keeps it.
        num_rewards: of the study.
        checkpoints: paths by step.
    """
    metrics = {metric.metric_id: metric.value for metric in proto.metrics}
    names = reward_names(num_rewards)
    rewards = tuple(metrics.pop(name) for name in names if name in metrics)
    step = proto.step_count
    return Measurement(step, metrics, rewards, checkpoints.get(str(step)))
