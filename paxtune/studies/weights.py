"""Weights of trials for other programs."""

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paxtune.reports.tables import Document, write
from paxtune.service import study_location
from paxtune.studies.base import Args, flag, opened, register
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from trainer.runtime.directory import JobPath

_PROGRAM = 'lm_eval'
_TRIAL = flag(
    '--trial',
    type=study_location.trial_number,
    default='best',
    metavar='N',
    help='number of the trial; default: best',
)


@register(
    'weights',
    'writes the weights of a trial for transformers, or its adapters for peft',
    _TRIAL,
    flag('--to', choices=['hf', 'peft'], default='hf', help='a whole model, or adapters alone'),
    flag('--out', required=True, metavar='DIR', help='directory to write'),
)
def _weights(args: Args) -> None:
    from trainer.convert.runs import write_run

    with opened(args) as study:
        kind, step = write_run(Path(_run_of(study, args.trial)), Path(args.out), args.to)
    made = {'directory': args.out, 'kind': kind, 'step': int(step)}
    write(Document(made, remark=f'Wrote {args.out}: {kind}, step {step}'), args.format)


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
    from trainer.convert.runs import write_run

    with opened(args) as study, tempfile.TemporaryDirectory() as folder:
        run, model = _run_of(study, args.trial), Path(folder, 'model')
        write_run(Path(run), model, 'hf')
        results = run / 'lm_eval'
        command = [program, '--model=hf', f'--model_args=pretrained={model}']
        command += [f'--tasks={args.tasks}', f'--output_path={results}', *shlex.split(args.flags)]
        # Standard output is for the result alone.
        to = sys.stderr if args.format == 'json' else None
        code = subprocess.run(command, check=False, stdout=to).returncode
    if code:
        raise UserError(f'{args.program} ended with exit code {code}: see its messages above')
    write(Document({'directory': str(results)}, remark=f'Results: {results}'), args.format)


def _run_of(study: 'Study', number: int | Literal['best']) -> 'JobPath':
    """The directory of the last attempt of a trial."""
    from paxtune.study.trial_paths import attempt_directory

    if study.directory is None:
        raise UserError('a study outside of a directory has no checkpoints')
    return attempt_directory(study.directory, study.trial(number))
