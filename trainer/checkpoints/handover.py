"""Handover of checkpoints to the directory of another run, which continues the first.

The other run is a new attempt at the same run, or a fork. The process of the earlier run may still
live, on a machine that was wrongly considered lost. It writes and deletes in its own directory,
which does not affect the copied checkpoints.
"""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from absl import logging
from etils import epath

from trainer.checkpoints import experiment_record
from trainer.checkpoints.checkpoint import COMMITTED, newest_checkpoint, saved_checkpoints
from trainer.checkpoints.experiment_record import FORKED_FROM
from trainer.runtime import processes
from trainer.runtime.directory import absolute, is_local, write_json, write_text
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.metrics_file import METRICS
from trainer.symbolic.errors import CheckpointGoneError, UserError
from trainer.warm_start_rules import FILE as WARM_START

# Orbax ignores directories with this in their name, and deletes them when a run begins.
_TEMPORARY = '.orbax-checkpoint-tmp'

_MAX_TAKEN = 2  # The second is a fallback if the newest is damaged.

_MAX_TRIES = 10  # An earlier attempt that still runs may delete a checkpoint before it is copied.

_IS_THERE = (errno.EEXIST, errno.ENOTEMPTY)

_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)

CopyFile: TypeAlias = Callable[[epath.Path, epath.Path], None]


def copy_file(source: epath.Path, target: epath.Path) -> None:
    """Copies a file, as a hard link where the file system has them."""
    if is_local(source) and is_local(target):
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
    source.copy(target, overwrite=True)


def take_over(
    earlier: Sequence[epath.PathLike], run_dir: epath.PathLike, copy: CopyFile = copy_file
) -> int:
    """Copies the newest checkpoint of earlier attempts into the directory of a new attempt.

    The checkpoint before it, as a fallback, the metrics up to it, and the record of the experiment
    are copied, too. Copies are hard links where the file system has them, because complete
    checkpoints never change. Nothing happens if the new attempt has a checkpoint already, so a
    killed call can be repeated. With several processes all must call this; the first does the work.

    Args:
        earlier: directories of the earlier attempts, in order. They may be missing, and may change
            during the call.
        run_dir: directory of the new attempt, for `trainer.loop.train_loop.run`.
        copy: copies a file of a checkpoint.

    Returns:
        Step of the newest checkpoint of the new attempt, from which it resumes unless that is
        damaged; 0 if it starts from the beginning.

    Raises:
        OSError: a checkpoint cannot be read or written. Repeating the call continues.
    """
    with processes.together():
        target = absolute(run_dir)
        step = _take_over(earlier, target, copy) if processes.is_first() else None
        return processes.broadcast(step) or 0


def fork_checkpoint(
    sources: Sequence[epath.PathLike],
    step: int,
    run_dir: epath.PathLike,
    copy: CopyFile = copy_file,
) -> None:
    """Starts a fresh run from the checkpoint of another run at a given step.

    `train_loop.run` then resumes from it, with the state of the optimizer, the random numbers, the
    position in the data and the resource counts. The experiments of both runs may differ in
    numbers, in measures and in checkpoints. Metrics are not copied. `forked_from.json` names the
    parent run.

    Copies are hard links where the file system has them. Nothing happens if the run has a
    checkpoint already, so a killed call can be repeated. On local disks two processes may call
    this at once: the parent run, before it deletes the checkpoint, and the fork. In a remote
    store, which cannot rename a directory atomically, they must not.

    With several training processes one calls this, inside `processes.together`.

    Args:
        sources: directories of the attempts at the parent run, the newest first. They may be
            missing, and may change during the call.
        copy: copies a file of the checkpoint.

    Raises:
        CheckpointGoneError: no source has the checkpoint (any more), and the run has none.
        UserError: the run was forked from another run, or at another step.
        OSError: a checkpoint cannot be read or written. Repeating the call continues.
    """
    target = absolute(run_dir)
    directories = [absolute(source) for source in sources]
    _require_same_origin(target, directories, step)
    for directory in directories:
        if newest_checkpoint(target / 'checkpoints') is not None:
            return
        checkpoint = directory / 'checkpoints' / str(step)
        if newest_checkpoint(checkpoint) == checkpoint:
            _fork(checkpoint, target, copy)
    if newest_checkpoint(target / 'checkpoints') is None:
        raise CheckpointGoneError(
            f'{target}: there is no checkpoint of step {step} to fork in '
            f'{", ".join(map(str, directories)) or "no directory"}: its run has deleted it, or '
            'never saved at this step. Keep more checkpoints (train.checkpoints.keep), or fork '
            'before the run continues'
        )


def _require_same_origin(target: epath.Path, sources: Sequence[epath.Path], step: int) -> None:
    if newest_checkpoint(target / 'checkpoints') is None or not (target / FORKED_FROM).exists():
        return
    origin = json.loads((target / FORKED_FROM).read_text())
    # The directory of all these runs may have been moved.
    names = [source.name for source in sources]
    if origin['step'] != step or epath.Path(origin['run']).name not in names:
        raise UserError(
            f'{target} was forked from step {origin["step"]} of {origin["run"]}, and not from step '
            f'{step} of {", ".join(map(str, sources))}: move it away, or use another directory'
        )


def _fork(checkpoint: epath.Path, target: epath.Path, copy: CopyFile) -> None:
    """Copies a checkpoint, unless it vanishes, or another process has copied one."""
    final = target / 'checkpoints' / checkpoint.name
    partial = _partial(final, f'-{uuid.uuid4().hex}')
    try:
        _copy_tree(checkpoint, partial, copy)
        provenance = {'run': str(checkpoint.parent.parent), 'step': int(checkpoint.name)}
        write_json(target / FORKED_FROM, provenance)
        if partial == final:
            _commit(partial, final)
        else:
            os.rename(partial, final)  # Fails if another process was faster.
    except OSError as error:
        _remove(partial)
        if not _has_vanished(error) and error.errno not in _IS_THERE:
            raise


def _take_over(earlier: Sequence[epath.PathLike], target: epath.Path, copy: CopyFile) -> int:
    saved = newest_checkpoint(target / 'checkpoints')
    for _ in range(_MAX_TRIES):
        if saved is not None:
            break
        found = _found([absolute(directory) for directory in earlier])
        if not found:
            return 0
        _copy_newest(found, target, copy)
        saved = newest_checkpoint(target / 'checkpoints')
    if saved is None:
        logging.warning('%s: its checkpoints disappear; the run starts from the beginning', target)
    return 0 if saved is None else int(saved.name)


def _found(earlier: Sequence[epath.Path]) -> list[epath.Path]:
    """Checkpoints of earlier attempts, newest first; the last attempt wins at each step."""
    by_step: dict[int, epath.Path] = {}
    for directory in earlier:
        with contextlib.suppress(FileNotFoundError):
            saved = saved_checkpoints(directory / 'checkpoints')
            by_step |= {int(checkpoint.name): checkpoint for checkpoint in saved}
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def _copy_newest(found: Sequence[epath.Path], target: epath.Path, copy: CopyFile) -> None:
    """Copies the first two checkpoints that still exist, with the metrics of the first."""
    ready: list[tuple[epath.Path, epath.Path]] = []
    for checkpoint in found:
        final = target / 'checkpoints' / checkpoint.name
        partial = _partial(final)
        try:
            _copy_tree(checkpoint, partial, copy)
        except OSError as error:
            if not _has_vanished(error):
                raise
            # Its attempt still runs and has deleted it. The partial copy does not count.
            _remove(partial)
            continue
        if not ready:
            _copy_metrics(checkpoint, target)
            _copy_provenance(checkpoint, target)
        ready.append((partial, final))
        if len(ready) == _MAX_TAKEN:
            break
    # The newest first: a repeated call stops at a checkpoint that it finds. A kill in between costs
    # the fallback, and no steps.
    for partial, final in ready:
        _commit(partial, final)


def _has_vanished(error: OSError) -> bool:
    # Network file systems report ESTALE.
    return isinstance(error, FileNotFoundError) or error.errno == errno.ESTALE


def _partial(final: epath.Path, own: str = '') -> epath.Path:
    """Prepares the path of a partial copy; in a remote store the final path, without renames."""
    partial = final.with_name(final.name + _TEMPORARY + own) if is_local(final) else final
    _remove(partial)
    return partial


def _commit(partial: epath.Path, final: epath.Path) -> None:
    if partial == final:
        (final / COMMITTED).write_text(f'Continues in {final}')
        return
    _remove(final)  # An incomplete checkpoint.
    os.rename(partial, final)


def _copy_tree(source: epath.Path, target: epath.Path, copy: CopyFile) -> None:
    """Copies a checkpoint, except for the file that completes it in a remote store."""
    files = sorted(_files(source))
    for directory in sorted({os.path.dirname(file) for file in files}):
        (target / directory).mkdir(parents=True, exist_ok=True)
    for file in files:
        if file != COMMITTED or is_local(target):
            copy(source / file, target / file)
    if not files or sorted(_files(source)) != files:
        raise FileNotFoundError(errno.ENOENT, 'it was being deleted', str(source))


def _files(directory: epath.Path, under: str = '') -> Iterator[str]:
    for child in (directory / under).iterdir():
        name = os.path.join(under, child.name)
        if child.is_dir():
            yield from _files(directory, name)
        else:
            yield name


def _remove(directory: epath.Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        directory.rmtree()


def _copy_metrics(checkpoint: epath.Path, target: epath.Path) -> None:
    step = int(checkpoint.name)
    records = read_metrics(checkpoint.parent.parent / METRICS)
    kept = [json.dumps(record) + '\n' for record in records if record['step'] <= step]
    target.mkdir(parents=True, exist_ok=True)
    write_text(target / METRICS, ''.join(kept))


def _copy_provenance(checkpoint: epath.Path, target: epath.Path) -> None:
    for name in (experiment_record.FILE, WARM_START, FORKED_FROM):
        with contextlib.suppress(FileNotFoundError):
            write_text(target / name, (checkpoint.parent.parent / name).read_text())
