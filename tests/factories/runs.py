"""Runs of the training loop, and what they leave behind, for tests."""

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from tensorboardX.proto import event_pb2

from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.experiment import Experiment
from trainer.loop.report import Report
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.runtime.directory import JobPath
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.warm_start.warm_start import frozen_parameters


def measured(made: Experiment, directory: JobPath, **fields: Any) -> list[Report]:
    return list(run(made, directory, **fields))


def resumed_after_an_interruption(made: Experiment, directory: JobPath) -> list[Report]:
    """The reports of a run that is interrupted at step 3, and of the same run as it goes on."""
    asked = iter([False, False, True])
    found = []
    with pytest.raises(Exception, match='interrupted at step 3'):
        for each in run(made, directory, lambda: next(asked)):
            found.append(each)
    return found + list(run(made, directory))


def without_speed(measurement: Report) -> dict[str, float]:
    return {k: v for k, v in measurement.metrics.items() if k not in THROUGHPUT_METRICS}


def final_state(made: Experiment, directory: JobPath) -> Any:
    """The state of the newest checkpoint of a run, frozen parameters included."""
    made = localized(made)
    program, values = compiled(made)
    with contextlib.closing(CheckpointStore(directory / 'checkpoints')) as store:
        frozen = frozen_parameters(made, program, values)
        restored = store.restore(program.abstract_state, frozen)
    assert restored is not None
    return jax.device_get(restored.state)


def scalars(directory: Path, tag: str, within: str = 'summaries') -> list[int]:
    """Steps of a scalar as TensorBoard shows them: a restart purges from its step on."""
    events: Any = event_pb2  # Generated code makes its classes when it is imported.
    steps: list[int] = []
    for file in sorted((directory / within).iterdir()):
        for data in RecordReader(file):
            event = events.Event.FromString(data)
            if event.session_log.status == events.SessionLog.START:
                steps = [step for step in steps if step < event.step]
            steps += [event.step for value in event.summary.value if value.tag == tag]
    return steps


def RecordReader(file: Path) -> Iterator[bytes]:
    """The records of a TFRecord file, without their checksums."""
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack('<Q', data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]
