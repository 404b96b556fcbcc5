import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paxtune.reports.tables import Document, write
from paxtune.service import study_location
from paxtune.studies.base import Args, flag, locked, register
from trainer import command
from trainer.command import positive_int
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study


@register(
    'add',
    'adds a trial, which runs before new suggestions',
    flag('decisions', nargs='+', metavar='PATH=VALUE', help='one for each decision'),
    flag('--draw', action='store_true', help='draw the decisions that are left out at random'),
    flag('--warm_start', type=int, metavar='TRIAL', help='start from the weights of this trial'),
)
def _add(args: Args) -> None:
    from paxtune.reports.study_edits import added

    decisions = command.decisions_given(args.decisions, 'add')
    with locked(args) as study:
        if not args.draw:
            _require_all(study, decisions)
        write(added(study.add(decisions, warm_start=args.warm_start).view), args.format)


def _require_all(study: 'Study', decisions: Mapping[str, Any]) -> None:
    from paxtune.search_space.space import MissingDecisionsError

    try:
        study.space.parse(decisions)
    except MissingDecisionsError as error:
        raise UserError(
            f'{error}\nGive each as PATH=VALUE, or let studies add --draw draw them at random.'
        ) from error


@register(
    'confirm',
    'adds replicates of the best trials, with other training seeds',
    flag('--top', type=positive_int, metavar='N', default=5, help='best trials; default: 5'),
    flag(
        '--replicates',
        type=positive_int,
        metavar='N',
        default=3,
        help='trials of each, with the existing ones; default: 3',
    ),
)
def _confirm(args: Args) -> None:
    from paxtune.reports.study_edits import confirmed

    with locked(args) as study:
        added = study.confirm(args.top, args.replicates)
        write(confirmed([each.view for each in added]), args.format)


@register(
    'ask',
    'prints suggested trials for you to evaluate, as lines of JSON',
    flag('--count', type=positive_int, metavar='N', default=1, help='default: 1'),
)
def _ask(args: Args) -> None:
    from paxtune.reports.ask_tell import ask

    with locked(args, is_shared=True) as study:
        asked = ask(study, args.count)
        if args.format == 'json':
            write(Document([*asked]), args.format)
            return
        # A caller may begin with the first while the next one is suggested.
        for trial in asked:
            print(json.dumps(trial), flush=True)


@register(
    'tell',
    'reports the result of a trial of `ask`',
    flag('trial', type=int, metavar='TRIAL'),
    flag('metrics', nargs='*', metavar='METRIC=VALUE', help='a number without a name: the reward'),
    flag('--infeasible', metavar='REASON', help='reason of a failure, in place of metrics'),
)
def _tell(args: Args) -> None:
    from paxtune.reports.ask_tell import tell

    with locked(args, is_shared=True) as study:
        print(json.dumps(tell(study, args.trial, args.metrics, args.infeasible)))


@register(
    'stop',
    'asks the search to stop trials; without any, to pause',
    flag('trials', type=int, nargs='*', metavar='TRIAL'),
)
def _stop(args: Args) -> None:
    from paxtune.reports.study_edits import stop

    write(stop(args.where, args.trials), args.format)


@register(
    'retry',
    'adds a trial that runs another one again',
    flag('trial', type=int, metavar='TRIAL'),
)
def _retry(args: Args) -> None:
    from paxtune.reports.study_edits import added

    with locked(args) as study:
        write(added(study.retry(args.trial).view), args.format)


@register(
    'delete',
    'deletes trials and their directories, or a whole study',
    flag('trials', type=int, nargs='*', metavar='TRIAL'),
    flag('--yes', action='store_true', help='delete; without it, only list what would be deleted'),
)
def _delete(args: Args) -> None:
    from paxtune.reports.study_edits import (
        delete_from_service,
        delete_study,
        delete_trials,
        delete_trials_from_service,
        study_deleted,
    )
    from paxtune.storage.deletion import delete

    if study_location.is_apart(args):
        made = (
            delete_trials_from_service(args.where, args.trials, args.yes)
            if args.trials
            else delete_from_service(args.where, args.yes)
        )
        write(made, args.format)
        return
    if args.trials:
        with locked(args) as study:
            write(delete_trials(study, args.trials, args.yes), args.format)
        return
    # A kill may have left a part of it under another name.
    if args.yes and not Path(args.dir).exists() and delete(Path(args.dir)):
        write(study_deleted(args.dir), args.format)
        return
    with args.where.locked() as directory:
        write(delete_study(directory, args.yes), args.format)


@register('recover', 'rebuilds a broken study.db from the records of the trials')
def _recover(args: Args) -> None:
    from paxtune.storage.recovery import recover
    from trainer.runtime.directory import locked

    _require_local(args, 'recover', 'a service keeps its studies in its own database')
    if not Path(args.dir).is_dir():
        raise UserError(f'{args.dir}: there is no such directory')
    with locked(args.dir) as directory:
        found = recover(directory)
    data = {'trials': found.trials, 'problems': found.problems}
    write(Document(data, remark=found.message), args.format)


def _require_local(args: Args, name: str, why: str) -> None:
    if study_location.is_apart(args):
        raise UserError(f'{name} {args.where}: {why}')
