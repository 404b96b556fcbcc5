import json

from paxtune.reports.tables import Document, say, write
from paxtune.service import study_location
from paxtune.studies.base import Args, flag, locked, opened, register, writing
from trainer.symbolic.errors import UserError


@register(
    'export',
    'writes a whole study as JSON',
    flag('--out', metavar='FILE', help='file to write; prints by default'),
)
def _export(args: Args) -> None:
    from paxtune.study import export

    with opened(args) as study:
        text = json.dumps(export.export(study), indent=2, allow_nan=False)
    _put(args, text + '\n')


@register(
    'curves',
    'writes the learning curves, for python -m paxtune.simulate',
    flag('--out', metavar='FILE', help='.json file to write; prints by default'),
)
def _curves(args: Args) -> None:
    from paxtune.simulate.export import curves

    if args.out is not None and not args.out.endswith('.json'):
        raise UserError(f'--out={args.out}: curves are written as JSON: name it FILE.json')
    with opened(args) as study:
        text = curves(study)
    _put(args, text)


@register(
    'portfolio',
    'writes decisions that together do best in the studies below, for --initial_trials',
    flag('more', nargs='*', metavar='ROOT', help='other directories of studies'),
    flag('--out', metavar='FILE', help='.json file to write; prints by default'),
    flag('--count', type=int, default=10, metavar='N', help='of decisions at most; default: 10'),
    is_on_all=True,
)
def _portfolio(args: Args) -> None:
    from paxtune.reports.portfolio_file import portfolio_of

    if isinstance(args.where, study_location.ServiceLocation):
        raise UserError('a portfolio is of studies in directories, not of those of a service')
    if args.count < 1:
        raise UserError(f'--count={args.count}: expected at least 1')
    made = portfolio_of([args.dir, *args.more], args.count)
    _put(args, json.dumps(made, indent=2, allow_nan=False) + '\n')


def _put(args: Args, text: str) -> None:
    """Writes the file of --out, or JSON text to standard output."""
    from trainer.runtime.directory import write_text

    if args.out is None:
        say(text)
        return
    with writing(args.out):
        write_text(args.out, text)
    if args.format == 'json':
        write(Document({'file': args.out}), args.format)


@register(
    'import',
    'adds the ended trials that `export` wrote, where they fit',
    flag('file', metavar='FILE'),
)
def _import(args: Args) -> None:
    from paxtune.reports.study_edits import import_file

    with locked(args) as study:
        write(import_file(study, args.file), args.format)
