"""Record of the experiment of a run, `experiment.json`, and its changes when the run resumes."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyglove as pg
from etils import epath

from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.reader import CheckpointReader
from trainer.experiment import Experiment
from trainer.runtime.directory import absolute, read_text, write_text
from trainer.symbolic.concrete import concrete
from trainer.symbolic.errors import UserError, shortened
from trainer.symbolic.serialization import from_json_text, to_json_text

FILE = 'experiment.json'

FORKED_FROM = 'forked_from.json'
"""File in the directory of a fork: the directory of its parent run, and the step."""

_FIELDS = ('task', 'train_input', 'eval_inputs', 'decode_inputs', 'mesh', 'train')
_SEED = 'train.random_seed'
_TYPE = pg.JSONConvertible.TYPE_NAME_KEY
_MISSING = object()
_MAX_CHANGE_LENGTH = 80


class Change(NamedTuple):
    """A difference at a path between the recorded experiment of a run and the present one."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f'  {self.path}: {self.before} → {self.after}'

    @property
    def is_free(self) -> bool:
        """True if the run computes the same with it: other devices, another length or interval."""
        return self.path.startswith(('mesh', 'train.')) and self.path != _SEED


def recorded(experiment: Experiment) -> str:
    """The text of the record of an experiment without open decisions; UserError with some."""
    return to_json_text(concrete(experiment))


def changes(
    directory: epath.PathLike, record: str, num_shards: tuple[int, int] = (1, 1)
) -> list[Change]:
    """Lists the changes of an experiment since a run recorded it; none before it has begun.

    Only fields that the trainer reads are compared, and not, for example, the search of a trial.
    Checkpoints without a record have an unknown owner, unless a fork has yet to begin.

    Args:
        directory: the directory of the run.
        record: the text of the experiment now, from `recorded`.
        num_shards: shards of a batch in the run, and now. Where they differ, batches of all shards
            are compared.

    Raises:
        UserError: the record cannot be read.
    """
    path = absolute(directory) / FILE
    if not path.exists():
        is_fork = (path.parent / FORKED_FROM).exists()
        if is_fork or newest_checkpoint(path.parent / 'checkpoints') is None:
            return []
        return [Change(FILE, 'missing, beside checkpoints', 'this experiment')]
    try:
        before = read_text(path)
        if before == record and num_shards[0] == num_shards[1]:
            return []
        trees = _trees(before, record)
        if num_shards[0] != num_shards[1]:
            trees = [_with_global_batches(*each) for each in zip(trees, num_shards, strict=True)]
        return list(_differences('', *trees))
    except (AttributeError, LookupError, ValueError) as error:
        raise UserError(
            f'{path} is damaged ({error}): the experiment of the run is unknown. Restore the file, '
            'or remove it and pass --allow_changes, if the experiment is the same'
        ) from error


def changes_of_resumption(directory: epath.PathLike, record: str, num_shards: int) -> list[Change]:
    """Lists the changes with which a run would resume; none if it starts from the beginning."""
    checkpoint = newest_checkpoint(epath.Path(directory) / 'checkpoints')
    if checkpoint is None:
        return []
    before = num_shards
    with contextlib.suppress(UserError):  # It is damaged: an older one may be used.
        before = len(CheckpointReader(checkpoint).progress.positions)
    return changes(directory, record, (before, num_shards))


def require_free(directory: epath.PathLike, found: Sequence[Change]) -> None:
    """Raises UserError, with all changes, unless a run can resume with them."""
    if not all(change.is_free for change in found):
        raise UserError(
            f'--job_log_dir: {directory} holds another experiment. There, and now:\n'
            + '\n'.join(map(str, found))
            + '\nUse another --job_log_dir for the changed experiment. To resume the run with it '
            'nevertheless: --allow_changes (in Python, allow_changes=True)'
        )


def write(directory: epath.PathLike, record: str, step: int, found: Sequence[Change]) -> None:
    """Records an experiment. An earlier record, if it differs, stays beside it.

    Args:
        record: the text of the experiment, from `recorded`.
        step: the step from which the run resumes, in the name of the earlier record.
        found: the changes since that record.
    """
    path = epath.Path(directory) / FILE
    if found and path.exists():
        number = 1 + sum(1 for _ in path.parent.glob('experiment-*-until-step-*.json'))
        kept = path.with_name(f'experiment-{number}-until-step-{step}.json')
        write_text(kept, path.read_text())
    write_text(path, record)


def _trees(*texts: str) -> list[Any]:
    trees = [{name: tree.get(name) for name in _FIELDS} for tree in map(json.loads, texts)]
    try:
        # Adds the defaults of fields that a class has got since.
        made = [from_json_text(json.dumps(tree), pg.Dict) for tree in trees]
        return [json.loads(to_json_text(each)) for each in made]
    except UserError:  # A class of the record is unknown here.
        return trees


def _with_global_batches(tree: dict[str, Any], num_shards: int) -> dict[str, Any]:
    """Replaces the batch sizes of inputs, which are sizes of one shard, in place."""
    evaluated = [*(tree['eval_inputs'] or {}).values(), *(tree['decode_inputs'] or {}).values()]
    for data in (tree['train_input'], *evaluated):
        _globalize(data, num_shards)
    return tree


def _globalize(data: Any, num_shards: int) -> None:
    parts: Sequence[Any] = data if isinstance(data, list) else ()
    if isinstance(data, dict):
        if 'batch_size' in data:  # Also in an input inside another input.
            data['batch_size of all processes'] = data.pop('batch_size') * num_shards
        parts = list(data.values())
    for part in parts:
        _globalize(part, num_shards)


def _differences(path: str, before: Any, after: Any) -> Iterator[Change]:
    if _is_same_kind(dict, before, after) and before.get(_TYPE) == after.get(_TYPE):
        for name in before | after:
            below = f'{path}.{name}' if path else name
            yield from _differences(below, before.get(name, _MISSING), after.get(name, _MISSING))
    elif _is_same_kind(list, before, after):
        for i, pair in enumerate(itertools.zip_longest(before, after, fillvalue=_MISSING)):
            yield from _differences(f'{path}[{i}]', *pair)
    elif before != after:
        yield Change(path, _rendered(before), _rendered(after))


def _is_same_kind(kind: type, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _rendered(value: Any) -> str:
    if value is _MISSING:
        return '(nothing)'
    if isinstance(value, dict) and _TYPE in value:
        return f'{value[_TYPE].rpartition(".")[2]}(…)'
    return shortened(json.dumps(value), _MAX_CHANGE_LENGTH)
