"""Measurements of stored trials, translated from Vizier's protocol buffers when they are read."""

import datetime
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vizier._src.service import study_pb2

from paxtune.objectives.measurement import Measurement
from paxtune.study.record import MAX_SECONDS, Measurements
from paxtune.study.record_checks import DamagedRecordError

_REWARD = '$reward'


class StoredMeasurements:
    """Measurements of a stored trial: an immutable sequence that decodes all when one is read.

    After an ended trial is decoded, its encoded form is dropped: it takes as much memory.

    Attributes:
        checkpoints: their paths, by step.
        num_known: the number of measurements at the start that equal the known ones of an earlier
            state of the trial; 0 where one of these differs.
    """

    def __init__(
        self,
        protos: Sequence[study_pb2.Measurement],
        checkpoints: Mapping[str, str],
        has_ended: bool = False,
        known: Measurements = (),
    ) -> None:
        """Keeps the protocol buffers, and the paths of checkpoints by step; see `num_known`."""
        self._protos: Sequence[study_pb2.Measurement] | None = protos
        self._values: tuple[Measurement, ...] | None = None
        self._count, self.checkpoints, self._has_ended = len(protos), checkpoints, has_ended
        self.num_known = len(known) if self._starts_with(known) else 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._decoded)

    def __getitem__(self, index: slice) -> Sequence[Measurement]:
        protos = self._protos
        if self._values is not None or protos is None:
            return self._decoded[index]
        return [decode_measurement(each, self.checkpoints) for each in protos[index]]

    def __add__(self, added: tuple[Measurement, ...]) -> 'StoredMeasurements':
        paths = {str(each.step): each.checkpoint for each in added if each.checkpoint is not None}
        encoded = [encode_measurement(each) for each in added]
        return StoredMeasurements([*self.protos, *encoded], {**self.checkpoints, **paths})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMeasurements | tuple):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(self._decoded)

    def _starts_with(self, known: Measurements) -> bool:
        if not isinstance(known, StoredMeasurements):
            return False
        first = self._protos[: len(known)] if self._protos else []
        paths = {str(each.step_count): each for each in first}.keys() & self.checkpoints.keys()
        same_paths = known.checkpoints == {step: self.checkpoints[step] for step in paths}
        return same_paths and [*first] == [*known.protos]

    @property
    def protos(self) -> Sequence[study_pb2.Measurement]:
        """The protocol buffers."""
        return self._protos or [encode_measurement(each) for each in self._decoded]

    @property
    def _decoded(self) -> tuple[Measurement, ...]:
        protos = self._protos  # Read first: another thread sets the values before it drops them.
        if self._values is None:
            assert protos is not None
            self._values = tuple(decode_measurement(each, self.checkpoints) for each in protos)
            if self._has_ended:
                self._protos = None
        return self._values


def encode_measurement(measurement: Measurement) -> study_pb2.Measurement:
    """Translates a measurement, without the path of its checkpoint."""
    proto = study_pb2.Measurement(step_count=measurement.step)
    for i, reward in enumerate(measurement.rewards):
        proto.metrics.add(metric_id=reward_name(i), value=reward)
    for name, value in measurement.metrics.items():
        proto.metrics.add(metric_id=name, value=value)
    if measurement.elapsed_seconds:
        proto.elapsed_duration.FromTimedelta(
            datetime.timedelta(seconds=measurement.elapsed_seconds)
        )
    return proto


def check_measurements(protos: Iterable[study_pb2.Measurement]) -> None:
    """Raises DamagedRecordError if a measurement cannot be read, now or when it is decoded."""
    for proto in protos:
        if not all(math.isfinite(metric.value) for metric in proto.metrics):
            raise DamagedRecordError(f'a metric of step {proto.step_count} is not finite')
        if abs(proto.elapsed_duration.seconds) > MAX_SECONDS:
            raise DamagedRecordError(
                f'step {proto.step_count} came after {proto.elapsed_duration.seconds} seconds'
            )


def decode_measurement(proto: study_pb2.Measurement, checkpoints: Mapping[str, str]) -> Measurement:
    """Translates back a measurement that `check_measurements` has checked."""
    metrics = {sys.intern(metric.metric_id): metric.value for metric in proto.metrics}
    names = [name for name in metrics if name.startswith(_REWARD)]
    rewards = tuple(metrics.pop(name) for name in names)
    step = proto.step_count
    elapsed = proto.elapsed_duration
    seconds = (elapsed.seconds * 10**6 + elapsed.nanos // 1000) / 10**6
    return Measurement(step, metrics, rewards, checkpoints.get(str(step)), seconds)


def reward_name(index: int) -> str:
    """Returns the name of the metric that holds a reward."""
    # No metric of a user begins with $.
    return _REWARD if index == 0 else f'{_REWARD}.{index}'
