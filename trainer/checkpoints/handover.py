"""Checkpoints that go from one run's directory into another's, where training goes on.

That is a new attempt at the same run, or a run that branches off. The process of the earlier one
may still be there (a machine that was only thought to be lost), and go on writing: it writes in its
own directory, and nothing that it does there, or deletes, changes what was brought over.
"""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator, Sequence

from absl import logging
from etils import epath

from trainer.checkpoints.checkpoint import COMMITTED, newest_checkpoint, saved_checkpoints
from trainer.runtime import processes
from trainer.runtime.directory import absolute, is_local, write_json, write_text
from trainer.runtime.metric_writer import METRICS, read_metrics
from trainer.symbolic.errors import CheckpointGoneError
from trainer.warm_start_rules import FILE as WARM_START

BRANCHED_FROM = 'branched_from.json'
"""In a run's directory: of which other run it goes on from a checkpoint, and of which step."""

# Orbax ignores what has this in its name, and deletes it when a run begins.
_TEMPORARY = '.orbax-checkpoint-tmp'

_MOST_TAKEN = 2  # One to fall back upon, should the newest turn out to be damaged.

_LOOKS = 10  # An earlier attempt that goes on may delete what was found.

_IS_THERE = (errno.EEXIST, errno.ENOTEMPTY)

_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)


def take_over(earlier: Sequence[epath.PathLike], run_dir: epath.PathLike) -> int:
    """Brings the newest checkpoint of earlier attempts into the directory of a new one.

    So are the metrics up to there, and the checkpoint before it, to fall back upon. Checkpoints
    are hard links where the file system has them, since nobody ever changes a complete one, and
    copies otherwise. Nothing happens where the new attempt has a checkpoint already: after a kill
    at any time it may be called again. Of several processes all must call it; the first does it.

    Args:
        earlier: the directories of the earlier attempts, in their order. They may be missing, and
            may change meanwhile.
        run_dir: that of the new attempt, for `trainer.loop.train_loop.run`.

    Returns:
        The step of the newest checkpoint that the new attempt has, which it goes on from unless
        that is damaged; 0 where it starts from the beginning.

    Raises:
        OSError: what was found cannot be read, or not be written. The same call goes on.
    """
    with processes.together():
        step = _take_over(earlier, _absolute(run_dir)) if processes.is_first() else None
        return processes.broadcast(step) or 0


def fork_checkpoint(sources: Sequence[epath.PathLike], step: int, run_dir: epath.PathLike) -> None:
    """Has a fresh run begin with the checkpoint of a certain step of another run.

    `train_loop.run` then goes on from there as a resumed run does, with the state of the
    optimizer, random numbers and the position in the data, and counts on what was spent; its
    experiment may differ from the other one's in numbers and in what is measured or saved. No
    metrics are brought. `branched_from.json` says where it began.

    Checkpoints are hard links where the file system has them, so this costs next to nothing.
    Nothing happens where the run has a checkpoint already: after a kill at any time it may be
    called again. On local disks two processes may call it at once, such as that of the other run
    before it goes on and deletes the checkpoint, and that which is to train. In a remote store,
    which renames no directory in one go, they must not.

    Of several processes that train together, one calls it, inside `processes.together`.

    Args:
        sources: the directories of the attempts at the other run, the newest first. They may be
            missing, and may change meanwhile.
        step: of the checkpoint.
        run_dir: that of the fresh run.

    Raises:
        CheckpointGoneError: none of them has it (any more), and neither has the run.
        OSError: what was found cannot be read, or not be written. The same call goes on.
    """
    target = _absolute(run_dir)
    directories = [_absolute(source) for source in sources]
    for directory in directories:
        if newest_checkpoint(target / 'checkpoints') is not None:
            return
        checkpoint = directory / 'checkpoints' / str(step)
        if newest_checkpoint(checkpoint) == checkpoint:
            _branch(checkpoint, target)
    if newest_checkpoint(target / 'checkpoints') is None:
        raise CheckpointGoneError(
            f'{target}: there is no checkpoint of step {step} to branch off from in '
            f'{", ".join(map(str, directories)) or "no directory"}: the run that wrote it has gone '
            'on and deleted it, or never saved there. Keep more of them '
            '(train.checkpoints.keep), or branch off before it goes on'
        )


def _branch(checkpoint: epath.Path, target: epath.Path) -> None:
    """Brings a checkpoint, unless it vanishes meanwhile, or another process has brought one."""
    final = target / 'checkpoints' / checkpoint.name
    partial = _partial(final, f'-{uuid.uuid4().hex}')
    try:
        _copy_tree(checkpoint, partial)
        provenance = {'run': str(checkpoint.parent.parent), 'step': int(checkpoint.name)}
        write_json(target / BRANCHED_FROM, provenance)
        if partial == final:
            _commit(partial, final)
        else:
            os.rename(partial, final)  # Fails where another process was faster.
    except OSError as error:
        _remove(partial)
        if not _has_vanished(error) and error.errno not in _IS_THERE:
            raise


def _take_over(earlier: Sequence[epath.PathLike], target: epath.Path) -> int:
    saved = newest_checkpoint(target / 'checkpoints')
    for _ in range(_LOOKS):
        if saved is not None:
            break
        found = _found([_absolute(directory) for directory in earlier])
        if not found:
            return 0
        _bring(found, target)
        saved = newest_checkpoint(target / 'checkpoints')
    if saved is None:
        logging.warning('%s: checkpoints vanish; the run starts from the beginning', target)
    return 0 if saved is None else int(saved.name)


def _absolute(path: epath.PathLike) -> epath.Path:
    return absolute(epath.Path(path).expanduser())


def _found(earlier: Sequence[epath.Path]) -> list[epath.Path]:
    """The checkpoints of earlier attempts, newest first: one for each step, the last attempt's."""
    by_step: dict[int, epath.Path] = {}
    for directory in earlier:
        with contextlib.suppress(FileNotFoundError):
            saved = saved_checkpoints(directory / 'checkpoints')
            by_step |= {int(checkpoint.name): checkpoint for checkpoint in saved}
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def _bring(found: Sequence[epath.Path], target: epath.Path) -> None:
    """Brings the first two checkpoints that are still there, with the metrics of the first."""
    ready: list[tuple[epath.Path, epath.Path]] = []
    for checkpoint in found:
        final = target / 'checkpoints' / checkpoint.name
        partial = _partial(final)
        try:
            _copy_tree(checkpoint, partial)
        except OSError as error:
            if not _has_vanished(error):
                raise
            # Its attempt goes on and has deleted it. What is there of it does not count.
            _remove(partial)
            continue
        if not ready:
            _bring_metrics(checkpoint, target)
            _bring_provenance(checkpoint, target)
        ready.append((partial, final))
        if len(ready) == _MOST_TAKEN:
            break
    # The newest last: as soon as one is there, nothing else is brought.
    for partial, final in reversed(ready):
        _commit(partial, final)


def _has_vanished(error: OSError) -> bool:
    # ESTALE says so on network file systems.
    return isinstance(error, FileNotFoundError) or error.errno == errno.ESTALE


def _partial(final: epath.Path, own: str = '') -> epath.Path:
    """Where a checkpoint is put together: a remote store renames no directory in one go."""
    partial = final.with_name(final.name + _TEMPORARY + own) if is_local(final) else final
    _remove(partial)
    return partial


def _commit(partial: epath.Path, final: epath.Path) -> None:
    if partial == final:
        (final / COMMITTED).write_text(f'Taken over to {final}')
        return
    _remove(final)  # What is there is not complete.
    partial.rename(final)


def _copy_tree(source: epath.Path, target: epath.Path) -> None:
    """Copies a checkpoint, but for the file that makes it count in a remote store.

    Raises:
        FileNotFoundError: it was being deleted.
    """
    files = sorted(_files(source))
    for directory in sorted({os.path.dirname(file) for file in files}):
        (target / directory).mkdir(parents=True, exist_ok=True)
    for file in files:
        if file != COMMITTED or is_local(target):
            _copy(source / file, target / file)
    if not files or sorted(_files(source)) != files:
        raise FileNotFoundError(errno.ENOENT, 'it was being deleted', str(source))


def _files(directory: epath.Path, under: str = '') -> Iterator[str]:
    """The files in a directory, and in those in there, by their paths relative to it."""
    for child in (directory / under).iterdir():
        name = os.path.join(under, child.name)
        if child.is_dir():
            yield from _files(directory, name)
        else:
            yield name


def _copy(source: epath.Path, target: epath.Path) -> None:
    if is_local(source) and is_local(target):
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
    source.copy(target, overwrite=True)


def _remove(directory: epath.Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        directory.rmtree()


def _bring_metrics(checkpoint: epath.Path, target: epath.Path) -> None:
    """Writes the metrics that an earlier attempt wrote up to a checkpoint of its own."""
    step = int(checkpoint.name)
    records = read_metrics(checkpoint.parent.parent / METRICS)
    kept = [json.dumps(record) + '\n' for record in records if record['step'] <= step]
    target.mkdir(parents=True, exist_ok=True)
    write_text(target / METRICS, ''.join(kept))


def _bring_provenance(checkpoint: epath.Path, target: epath.Path) -> None:
    """Writes where an earlier attempt began, if that was not at the very beginning."""
    for name in (WARM_START, BRANCHED_FROM):
        with contextlib.suppress(FileNotFoundError):
            write_text(target / name, (checkpoint.parent.parent / name).read_text())
