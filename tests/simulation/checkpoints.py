"""Checkpoints of simulated trials: directories of several files, which have to agree.

A process may be killed before each file and before each rename, as in a real save.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from etils import epath

from paxtune.simulate.replay_workload import State
from trainer.checkpoints.checkpoint import METADATA, newest_checkpoint, saved_checkpoints
from trainer.runtime.directory import partial_id

if TYPE_CHECKING:
    from tests.simulation.world import World

FILES = (METADATA, 'state/a', 'state/b')
_MAX_TO_KEEP = 2  # As many as `trainer` keeps by default.


def save(world: 'World', state: State, run_dir: Path) -> str:
    """Writes a checkpoint, removes those before the last two, and returns its path."""
    directory = run_dir / 'checkpoints'
    partial, final = directory / f'.{partial_id()}.partial', directory / str(state.step)
    (partial / 'state').mkdir(parents=True)
    for name in FILES:
        world.files.before_write(f'{final}/{name}')
        (partial / name).write_text(json.dumps(dataclasses.asdict(state)))
    world.files.rename(partial, final)
    saved = sorted(int(each.name) for each in saved_checkpoints(epath.Path(directory)))
    for old in saved[:-_MAX_TO_KEEP]:
        removed = directory / f'.{partial_id()}.removed'
        world.files.rename(directory / str(old), removed)  # From here on it does not count.
        shutil.rmtree(removed)
    return str(final)


def newest(world: 'World', run_dir: Path) -> tuple[State, str | None]:
    """The newest checkpoint of a run, and its path; an initial state without one."""
    found = newest_checkpoint(run_dir / 'checkpoints')
    if found is None:
        return State(), None
    written = {os.path.relpath(p, found) for p in Path(found).rglob('*') if p.is_file()}
    contents = {(Path(found) / name).read_text() for name in written}
    if written != {*FILES} or len(contents) != 1:
        world.violate('torn checkpoint', f'{found} has {sorted(written)}')
        return State(), None
    content = json.loads(contents.pop())
    trace = tuple((trial, step) for trial, step in content['trace'])
    return State(trace, content['metrics']), str(found)
