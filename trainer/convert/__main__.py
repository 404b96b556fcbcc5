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

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse


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
    from trainer.convert.runs import write_run

    if args.job_log_dir is None or args.out is None:
        raise UserError('--to needs --job_log_dir=RUN and --out=DIR')
    run, out = Path(args.job_log_dir), Path(args.out)
    kind, step = write_run(run, out, args.to, args.checkpoint_step, args.dtype, args.tokenizer)
    command.say(f'Wrote {out}: {kind}, step {step}')
    return 0


if __name__ == '__main__':
    command.run_command(main)
