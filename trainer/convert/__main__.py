"""Converts between Hugging Face directories and experiments or runs.

    python -m trainer.convert --from=models/smollm2 --exp_out=smollm2.py
    python -m trainer.convert --to=hf --job_log_dir=runs/smollm2 --out=models/mine
    python -m trainer.convert --to=peft --job_log_dir=runs/smollm2 --out=models/adapter

The first command writes an experiment: the model that `config.json` describes, with its weights.
The second one writes a checkpoint of a run, the newest by default, as a directory that
`transformers` loads. A run that began with such a directory passes its tokenizer on. Adapters are
merged there; the third command writes them alone, for `peft`.
Exit codes: 0 done, 2 bad input; then nothing is written.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

    from etils import epath

    from trainer.convert.adapters import Start
    from trainer.task import Task


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    flags = command.parser(__doc__)
    flags.add_argument('--from', dest='source', metavar='DIR', help='directory of Hugging Face')
    flags.add_argument('--exp_out', metavar='FILE', help='Python file for the experiment of --from')
    flags.add_argument('--to', choices=['hf', 'peft'], help='write a model, or adapters')
    flags.add_argument('--job_log_dir', help='directory of the run that --to writes')
    flags.add_argument('--checkpoint_step', type=int, metavar='N', help='the newest by default')
    flags.add_argument('--out', metavar='DIR', help='directory that --to writes')
    flags.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32')
    flags.add_argument('--tokenizer', metavar='DIR', help='directory whose tokenizer --to copies')
    args = flags.parse_args(argv)
    if (args.source is None) == (args.to is None):
        raise UserError(
            'give either --from=DIR with --exp_out, or --to=hf (or peft) with --job_log_dir'
        )
    if args.source is not None:
        return _write_experiment(args)
    return _write_directory(args)


def _write_experiment(args: 'argparse.Namespace') -> int:
    from trainer.convert.experiments import experiment_text
    from trainer.convert.new_directory import writing
    from trainer.runtime.directory import write_text

    if args.exp_out is None:
        raise UserError('--from needs --exp_out=FILE, the Python file to write')
    path = Path(args.exp_out)
    if path.suffix != '.py' or not path.stem.isidentifier():
        raise UserError(f'--exp_out: {path.name} is no name of a Python module, such as tuned.py')
    if path.exists():
        raise UserError(f'--exp_out: {path} exists')
    if not path.parent.is_dir():
        raise UserError(f'--exp_out: there is no directory {path.parent}')
    text = experiment_text(args.source, path.stem)
    with writing('--exp_out', path):
        write_text(path, text)
    command.say(f'Wrote {path}. Set its paths to your data, then train:')
    command.say(
        f'  python -m trainer.main --exp={path.stem}.Continued --job_log_dir=runs/{path.stem}'
    )
    return 0


def _write_directory(args: 'argparse.Namespace') -> int:
    from trainer.convert.adapters import reader_of, write_peft
    from trainer.convert.directories import write_directory
    from trainer.convert.new_directory import require_new

    if args.job_log_dir is None or args.out is None:
        raise UserError('--to needs --job_log_dir=RUN and --out=DIR')
    require_new(Path(args.out))
    task, starts, began_with = _recorded(Path(args.job_log_dir))
    checkpoint = _checkpoint(args.job_log_dir, args.checkpoint_step)
    tokenizer = args.tokenizer or began_with
    if args.to == 'peft':
        kind = write_peft(task, starts, checkpoint, Path(args.out), began_with)
    else:
        reader = reader_of(task, starts, checkpoint)
        kind = write_directory(task.model, reader, Path(args.out), args.dtype, tokenizer)
    command.say(f'Wrote {args.out}: {kind}, step {checkpoint.name}')
    return 0


def _recorded(job_log_dir: Path) -> 'tuple[Task, list[Start], str | None]':
    """The task of a run, its warm starts, and the directory of Hugging Face that it began with."""
    from trainer.checkpoints.checkpoint import newest_checkpoint
    from trainer.runtime.directory import read_text
    from trainer.symbolic.component import Component
    from trainer.symbolic.serialization import from_json_text
    from trainer.task import Task
    from trainer.warm_start_rules import Inheritance, Pretrained, WarmStart, listed

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


def _checkpoint(job_log_dir: str, step: int | None) -> 'epath.Path':
    from etils import epath

    from trainer.checkpoints.checkpoint import newest_checkpoint

    place = epath.Path(job_log_dir).absolute() / 'checkpoints'
    found = newest_checkpoint(place if step is None else place / str(step))
    if found is None:
        which = 'no checkpoint' if step is None else f'no checkpoint of step {step}'
        raise UserError(f'--job_log_dir: there is {which} in {place}')
    return found


if __name__ == '__main__':
    command.run_command(main)
