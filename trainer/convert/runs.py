import json
from pathlib import Path
from typing import Any, Literal

from etils import epath

from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.convert.adapters import Start, reader_of, write_peft
from trainer.convert.directories import write_directory
from trainer.convert.new_directory import require_new
from trainer.runtime.directory import read_text
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text
from trainer.task import Task
from trainer.warm_start_rules import Inheritance, Pretrained, WarmStart, listed


def write_run(
    job_log_dir: Path,
    out: Path,
    to: Literal['hf', 'peft'],
    step: int | None = None,
    dtype: Literal['float32', 'bfloat16'] = 'float32',
    tokenizer: str | None = None,
) -> tuple[str, str]:
    """Writes the weights of a run as a directory for other libraries.

    Args:
        job_log_dir: the directory of the run.
        out: the new directory.
        to: 'hf' for a model, in which adapters are merged; 'peft' for adapters alone.
        step: of the checkpoint; None for the newest.
        dtype: of the tensors of a model.
        tokenizer: a directory whose tokenizer comes along; None for the one that the run began
            with.

    Returns:
        A class of transformers or a kind of adapter, and the step.

    Raises:
        UserError: there is no such run or checkpoint; no known architecture computes its model; or
            `out` exists, and is no empty directory.
    """
    require_new(out)
    task, starts, began_with = _recorded(job_log_dir)
    checkpoint = _checkpoint(job_log_dir, step)
    if to == 'peft':
        kind = write_peft(task, starts, checkpoint, out, began_with)
    else:
        reader = reader_of(task, starts, checkpoint)
        kind = write_directory(task.model, reader, out, dtype, tokenizer or began_with)
    return kind, checkpoint.name


def _recorded(job_log_dir: Path) -> tuple[Task, list[Start], str | None]:
    """The task of a run, its warm starts, and the directory of Hugging Face that it began with."""
    path = job_log_dir / 'experiment.json'
    try:
        tree: Any = json.loads(read_text(path))
        found = tree['train'].get('init_from_checkpoint')
        task = from_json_text(json.dumps(tree['task']), Task, f'{path}: task')
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f'--job_log_dir: {path} is no record of a run ({error})') from error
    starts: list[Any] = []
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, str):
            starts.append(WarmStart(each))
        elif each is not None:
            starts.append(from_json_text(json.dumps(each), Component, f'{path}: train'))
    known = [
        source
        for each in starts
        for source in (listed(each) if isinstance(each, Inheritance) else [each])
        # The base of a child is enough beside a parent that had adapters alone and is gone.
        if not isinstance(each, Inheritance)
        or isinstance(source, Pretrained)
        or newest_checkpoint(source.checkpoint) is not None
    ]
    places = [each.directory for each in known if isinstance(each, Pretrained)]
    return task, known, next((place for place in places if Path(place).is_dir()), None)


def _checkpoint(job_log_dir: Path, step: int | None) -> epath.Path:
    place = epath.Path(job_log_dir).absolute() / 'checkpoints'
    found = newest_checkpoint(place if step is None else place / str(step))
    if found is None:
        which = 'no checkpoint' if step is None else f'no checkpoint of step {step}'
        raise UserError(f'--job_log_dir: there is {which} in {place}')
    return found
