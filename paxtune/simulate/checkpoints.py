"""Checkpoints of trials whose training is read from a table."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from etils import epath

from trainer.checkpoints.checkpoint import METADATA, newest_checkpoint, saved_checkpoints
from trainer.runtime.directory import partial_id

TRACE = 'trace.json'
"""The file in a checkpoint that holds its state."""

_MAX_TO_KEEP = 2  # As many as `trainer` keeps by default.


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a trial.

    Attributes:
        trace: the evaluations so far, as (trial, step). A fork begins with its parent's.
        metrics: the metrics of the last evaluation.
    """

    trace: tuple[tuple[int, int], ...] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """The last step; 0 at the beginning."""
        return self.trace[-1][1] if self.trace else 0

    def after(self, trial: int, step: int, metrics: Mapping[str, float]) -> 'State':
        """The state after one more evaluation."""
        return State((*self.trace, (trial, step)), metrics)


def save(state: State, run_dir: Path) -> str:
    """Writes a checkpoint atomically, removes those before the last two, and returns its path."""
    directory = run_dir / 'checkpoints'
    partial = directory / f'.{partial_id()}.partial'
    partial.mkdir(parents=True)
    (partial / TRACE).write_text(json.dumps(dataclasses.asdict(state)))
    (partial / METADATA).write_text('{}\n')
    final = directory / str(state.step)
    partial.rename(final)
    for old in sorted(int(each.name) for each in saved_checkpoints(epath.Path(directory)))[
        :-_MAX_TO_KEEP
    ]:
        removed = directory / f'.{partial_id()}.removed'
        (directory / str(old)).rename(removed)  # From here on it does not count.
        shutil.rmtree(removed)
    return str(final)


def newest(run_dir: Path) -> tuple[State, str | None]:
    """The newest checkpoint of a run, and its path; an initial state without one."""
    found = newest_checkpoint(run_dir / 'checkpoints')
    return (State(), None) if found is None else (load(Path(found)), str(found))


def load(checkpoint: Path) -> State:
    """Reads a checkpoint."""
    content = json.loads((checkpoint / TRACE).read_text())
    return State(tuple((trial, step) for trial, step in content['trace']), content['metrics'])
