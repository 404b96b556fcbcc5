"""Trials of a comparison as plain data, for processes in other environments."""

import dataclasses
import json
import time
import uuid
from pathlib import Path
from typing import Any

RATES, DECAYS, WARMUPS = (3e-4, 3e-2), (1e-3, 1.0), (5, 10, 20, 40)
"""The space: learning rate and weight decay on logarithmic scales, and steps of warm-up."""

LAYERS, DIMS, HEADS, VOCAB = 2, 64, 4, 256
LENGTH, BATCH, EVAL_BATCH = 64, 16, 64
CLIP, FINAL, B1, B2, EPSILON = 1.0, 0.1, 0.9, 0.95, 1e-8


@dataclasses.dataclass(frozen=True)
class Setting:
    """One run of a tuner.

    Attributes:
        trials: their number.
        steps: of each trial.
        every: steps between evaluations, a divisor of `steps`.
        eval_bytes: text of an evaluation.
        seed: of the tuner.
        is_best_practice: compile one step for all trials, and keep compiled programs on the disk.
        search: 'tpe' or 'random'. Ray Tune always draws random values, as it does by default.
        prunes: stop trials early.
        target: end the run at this loss; None for no target.
    """

    trials: int
    steps: int
    every: int
    eval_bytes: int = 16_384
    seed: int = 0
    is_best_practice: bool = False
    search: str = 'tpe'
    prunes: bool = False
    target: float | None = None

    def to_json(self) -> str:
        """The setting as an argument of a command."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> 'Setting':
        """Reads what `to_json` wrote."""
        return cls(**json.loads(text))

    @property
    def evaluations(self) -> int:
        """The number of evaluations of a trial that runs to its end."""
        return self.steps // self.every

    @property
    def eval_batches(self) -> int:
        """The number of batches of an evaluation."""
        rows = -(-(self.eval_bytes - 1) // LENGTH)
        return -(-rows // EVAL_BATCH)


@dataclasses.dataclass
class TrialLog:
    """Times and losses of a trial.

    Attributes:
        losses: (seconds since the epoch, step, loss) of each evaluation.
        step_seconds: time of all train steps. The first is counted as the mean of the others,
            since it may compile.
        eval_seconds: the same for batches of evaluations.
        num_params: the size of the model.
        ended: seconds since the epoch at the last evaluation, or later.
        name: unique.
    """

    losses: list[tuple[float, int, float]] = dataclasses.field(default_factory=list)
    step_seconds: float = 0.0
    eval_seconds: float = 0.0
    num_params: int = 0
    ended: float = 0.0
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def write(self, path: Path) -> None:
        """Appends the trial as it is now to a file of JSON lines: a tuner may stop it any time."""
        self.ended = time.time()
        with path.open('a') as file:
            file.write(json.dumps(dataclasses.asdict(self)) + '\n')


def read_logs(path: Path) -> list[TrialLog]:
    """Reads what `TrialLog.write` wrote, in order of the ends."""
    lines = path.read_text().splitlines() if path.exists() else []
    logs: list[dict[str, Any]] = [json.loads(line) for line in lines]
    newest = {each['name']: TrialLog(**each) for each in logs}
    return sorted(newest.values(), key=lambda log: log.ended)
