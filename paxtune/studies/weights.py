"""Weights of trials for other programs."""

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paxtune.reports.tables import say
from paxtune.service import study_location
from paxtune.studies.base import Args, flag, opened, register
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study

_PROGRAM = 'lm_eval'
_TRIAL = flag(
    '--trial',
    type=study_location.trial_number,
    default='best',
    metavar='N',
    help='number of the trial; default: best',
)


def write_weights(study: 'Study', trial: int | Literal['best'], to: str, out: Path) -> None:
    """Writes the newest checkpoint of a trial as `python -m trainer.convert` does.

    Args:
        trial: its number, or the best.
        to: 'hf' for a model, in which adapters are merged; 'peft' for adapters alone.
        out: the directory to write.

    Raises:
        UserError: there is no such trial, or no checkpoint of it, or it has another architecture.
    """
    from trainer.convert.__main__ import main

    main([f'--to={to}', f'--job_log_dir={_run_of(study, trial)}', f'--out={out}'])


@register(
    'weights',
    'writes the weights of a trial for transformers, or its adapters for peft',
    _TRIAL,
    flag('--to', choices=['hf', 'peft'], default='hf', help='a whole model, or adapters alone'),
    flag('--out', required=True, metavar='DIR', help='directory to write'),
)
def _weights(args: Args) -> None:
    with opened(args) as study:
        write_weights(study, args.trial, args.to, Path(args.out))


@register(
    'lm_eval',
    'evaluates a trial on tasks of lm-eval, which has to be installed',
    _TRIAL,
    flag('--tasks', required=True, metavar='A,B', help='names of tasks, as of lm_eval --tasks'),
    flag('--program', default=_PROGRAM, metavar='FILE', help=f'default: {_PROGRAM}'),
    flag('--flags', default='', metavar='TEXT', help="further flags, such as '--limit=100'"),
)
def _lm_eval(args: Args) -> None:
    program = shutil.which(args.program)
    if program is None:
        raise UserError(
            f'--program: there is no {args.program}. Install lm-eval, with torch, in an '
            'environment of its own (`pip install lm-eval`), and name its program: '
            '--program=ENVIRONMENT/bin/lm_eval'
        )
    with opened(args) as study, tempfile.TemporaryDirectory() as folder:
        model = Path(folder, 'model')
        write_weights(study, args.trial, 'hf', model)
        results = _run_of(study, args.trial) / 'lm_eval'
        command = [program, '--model=hf', f'--model_args=pretrained={model}']
        command += [f'--tasks={args.tasks}', f'--output_path={results}', *shlex.split(args.flags)]
        code = subprocess.run(command, check=False).returncode
    if code:
        raise UserError(f'{args.program} ended with exit code {code}: see its messages above')
    say(f'Results: {results}\n')


def _run_of(study: 'Study', number: int | Literal['best']) -> JobPath:
    """The directory of the last attempt of a trial."""
    from paxtune.study.trial_paths import attempt_directory

    if study.directory is None:
        raise UserError('a study outside of a directory has no checkpoints')
    return attempt_directory(study.directory, study.trial(number))
