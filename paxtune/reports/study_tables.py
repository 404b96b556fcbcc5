import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from paxtune.algorithms import Default
from paxtune.analysis.checks import checks
from paxtune.reports.profiles import profile_of, profile_table
from paxtune.reports.study_parts import (
    budgets,
    checks_table,
    decisions_table,
    exact,
    infeasible_table,
    reasons,
    rungs_of,
    rungs_table,
    workers_table,
)
from paxtune.reports.tables import Document, Row, Table
from paxtune.schedulers import rung_report
from paxtune.search_space.decision_rows import rows as decision_rows
from paxtune.search_space.differences import differences, rendered
from paxtune.search_space.labels import display_value
from paxtune.study import export, replicates
from paxtune.study.columns import (
    GROUPS,
    Column,
    columns_of,
    decision_names,
    named,
    ordered,
    reward_columns,
    row_of,
)
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.worker_logs import worker_rows
from trainer.runtime.wall_clock import goodput
from trainer.symbolic.component import unchecked
from trainer.symbolic.errors import UserError

_FRONT = 'Trials that no other is better than in all objectives'


def summary(study: Study, has_best: bool = True) -> Document:
    """Summarizes a study: its search, its progress and its results.

    Args:
        study: the study.
        has_best: with the tables of the best trials.
    """
    trials = study.trials
    counts = collections.Counter(trial.status for trial in trials)
    decisions = [dataclasses.asdict(row) for row in decision_rows(study.space)]
    front, limits, infeasible = best_trials(study), budgets(study, trials), reasons(trials)
    columns = _columns(study, front)
    checked, workers = checks(study), worker_rows(study.directory)
    profile = profile_of(study)
    facts = {
        'directory': None if study.directory is None else str(study.directory),
        'experiment': study.record.experiment,
        'algorithm': display_value(_algorithm(study)),
        'scheduler': display_value(study.scheduler),
        'created': study.store.created(),
        'done': study.done_reason,
    }
    data = {
        **facts,
        'rewards': [{'label': each.label, 'goal': each.goal} for each in study.rewards],
        'size': study.space.size,
        'trials': {how: counts[how] for how in Status},
        'budgets': limits,
        'decisions': decisions,
        'best': _merged([row_of(trial, columns) for trial in front], _replicates(study, front)),
        'infeasible': infeasible,
        'checks': [dataclasses.asdict(each) for each in checked],
        'workers': workers,
        'profile': profile,
        'goodput': goodput(profile),
    }
    passed, remark = rungs_of(study)
    if study.scheduler is not None:
        data['rungs'] = passed
    cells = facts | {
        'experiment': study.record.name('') or None,
        'done': facts['done'] or 'no',
        'rewards': ', '.join(f'{each.label} ({each.goal})' for each in study.rewards),
        'size': study.space.size_text,
        'trials': ', '.join(f'{counts[how]} {how}' for how in Status if counts[how]),
    }
    tables = [
        _vertical(cells, 'study', 'value'),
        Table(limits, ['budget', 'used', 'limit']),
        decisions_table(decisions),
        *(best_tables(study, front) if has_best else []),
        infeasible_table(infeasible),
        rungs_table(passed),
        workers_table(workers),
        profile_table(profile, trials=trials),
        checks_table(checked),
    ]
    fields = [{'field': name, 'value': value} for name, value in data.items()]
    return Document(data, fields, ['field', 'value'], tables, remark)


def trials_of(
    study: Study,
    outcome: str | None = None,
    sort: str | None = None,
    limit: int | None = None,
    only: str | None = None,
) -> Document:
    """The trials of a study.

    Args:
        outcome: only trials in this state.
        sort: the column to sort by, least first, or best first for a reward; a - before the column
            reverses the order.
        limit: only this number of trials.
        only: these columns, separated by commas; `decisions`, `metrics` and `attributes` are all of
            them.

    Raises:
        UserError: there is no such column.
    """
    trials = [trial for trial in study.trials if outcome in (None, trial.status)]
    rung = _rung(study)
    if sort is not None:
        known = _columns(study, trials, rung)
        column = _meant(known, sort.removeprefix('-'), f'--sort={sort}')[0]
        trials = ordered(trials, column.value, sort.startswith('-') != column.is_maximized)
    trials = trials[:limit]
    columns = _columns(study, trials, rung)
    remark = '' if trials else 'There are no such trials.'
    table = _compact(study, trials, columns)
    if only is not None:
        flag = f'--columns={only}'
        columns = [each for name in only.split(',') for each in _meant(columns, name, flag)]
        cells = [{each.header: each.value(trial) for each in columns} for trial in trials]
        table = Table(cells, [each.header for each in columns])
        rows = [{each.key: each.value(trial) for each in columns} for trial in trials]
    else:
        rows = [row_of(trial, columns) for trial in trials]
    return Document(rows, rows, [each.key for each in columns], [table], remark)


def _rung(study: Study) -> list[Column]:
    """The column of the highest rung that a trial has passed; none without rungs, as `rungs_of`."""
    scheduler = study.scheduler
    if scheduler is None or len(study.rewards) != 1:
        return []
    curves = study.curves()
    if curves and not any(map(scheduler.rung_levels, curves)):
        return []
    reached = rung_report.rungs_reached(curves, scheduler)
    return [Column('rung', 'rung', lambda trial: reached.get(trial.id))]


def history_of(study: Study, number: int | Literal['best']) -> Document:
    """The state, history (oldest first) and model of a trial; UserError if there is none."""
    trial = study.trial(number)
    page = facts_of(study, trial)
    if not study.space.is_tunable:
        return page
    # Imported here, and below: a study of a function has no use for JAX.
    from paxtune.reports.architecture_tables import architecture

    model = architecture(study, trial)
    remarks = [each for each in (page.remark, *model.problems) if each]
    return dataclasses.replace(
        page,
        data={**page.data, 'architecture': model.data},
        tables=[*page.tables, *model.tables],
        remark='\n'.join(remarks),
    )


def facts_of(study: Study, trial: Trial) -> Document:
    """The state and history of a trial, which need no classes of its experiment."""
    row = row_of(trial, _columns(study, [trial]))
    last = trial.measurements[-1].step if trial.measurements else None
    cells = {
        'state': trial.status,
        **{name: row[name] for name in (*reward_columns(study.rewards), 'reason')},
        'attempt': trial.attempt,
        'worker': trial.record.holder or None,
        'measured at step': last,
        'replicate_of': trial.lineage.replicate_of_here,
        **{name: row[name] for name in ('origin', 'created', 'completed', 'seconds')},
        **trial.decisions,
        **{f'attributes.{name}': value for name, value in trial.attributes.items()},
    }
    events = [{**event.to_json(), 'time': event.time} for event in trial.record.history]
    names = ['time', 'event', 'attempt', 'worker', 'step', 'detail']
    remark = '' if events else f'Nothing has happened to trial {trial.id} yet.'
    tables = [
        _vertical(cells, f'trial {trial.id}', 'value'),
        profile_table(trial.record.profile),
        Table(events, names, 'History'),
    ]
    return Document(export.content(trial), trial.history, names, tables, remark)


def best_of(study: Study, trials: Sequence[Trial], train_command: str) -> Document:
    """Reports trials of `best_trials`, and the command that trains the first one, if any."""
    remark = '' if trials else 'No trial was completed yet.'
    if train_command:
        remark = f'To train trial {trials[0].id}:\n  {train_command}'
    columns, repeated = _columns(study, trials), _replicates(study, trials)
    added = [*repeated[0]] if repeated else []
    rows = _merged([row_of(trial, columns) for trial in trials], repeated)
    compact = _compact(study, trials, columns)
    rows_to_show = _merged(compact.rows, repeated)
    table = dataclasses.replace(compact, rows=rows_to_show, columns=[*compact.columns, *added])
    data = {'trials': rows, 'train': train_command or None}
    return Document(data, rows, [*(each.key for each in columns), *added], [table], remark)


def _merged(rows: Sequence[Row], more: Sequence[Row]) -> list[Row]:
    return [{**row, **added} for row, added in zip(rows, more, strict=True)]


def _replicates(study: Study, trials: Sequence[Trial]) -> list[Row]:
    """The means of the replicates of trials; nothing in a study without replicates."""
    if not replicates.has_replicates(study.trials, study.search.replicates):
        return [{} for _ in trials]
    standings = {each.trial.id: each for each in study.leaderboard}
    found = [standings[trial.id] for trial in trials]
    columns = reward_columns(study.rewards)
    return [
        {'num_replicates': len(each.trials)}
        | {f'mean {name}': mean for name, mean in zip(columns, each.rewards, strict=True)}
        | {f'± {name}': e for name, e in zip(columns, each.standard_errors, strict=True)}
        for each in found
    ]


def best_trials(study: Study, count: int | None = None) -> list[Trial]:
    """As many of the best trials as asked for; the Pareto front with several objectives.

    Raises:
        UserError: the study has several objectives, and a count was given.
    """
    if len(study.rewards) != 1 and count is not None:
        raise UserError(
            f'--top: the study has {len(study.rewards)} objectives, so there is no order from best '
            'to worst: leave --top out'
        )
    return [each.trial for each in study.winners(count or 1)]


def parent_of(study: Study, number: int) -> int:
    """The trial that another one was derived from: whose decisions were changed, or whose weights.

    Raises:
        UserError: there is no such trial, or it was derived from none.
    """
    trial = study.trial(number)
    if trial.lineage.parent is not None:
        return trial.lineage.parent
    if trial.lineage.weights_from is not None:
        return trial.lineage.weights_from[0]
    raise UserError(
        f'trial {number} was derived from no other one: name the trial that it is compared with'
    )


def difference(study: Study, left: int, right: int) -> Document:
    """Compares the experiments of two trials, their layers, costs and rewards.

    Where classes of the experiments are missing, their decisions are compared.

    Raises:
        UserError: there is no such trial, or its decisions make no experiment.
    """
    trials = study.trial(left), study.trial(right)
    if study.space.why_no_value:
        before, after = (trial.decisions for trial in trials)
        paths = [each for each in before | after if before.get(each) != after.get(each)]
        rows = [
            {'path': each, 'left': before.get(each), 'right': after.get(each)} for each in paths
        ]
    else:
        rows = [
            {'path': each.path, 'left': _side(each.left), 'right': _side(each.right)}
            for each in differences(*(_experiment(trial) for trial in trials))
        ]
    columns = reward_columns(study.rewards)
    rewards = [dict(zip(columns, trial.rewards, strict=False)) for trial in trials]
    sides = [
        {'trial': trial.id, 'state': trial.status, 'rewards': own}
        for trial, own in zip(trials, rewards, strict=True)
    ]
    about = [
        {'path': name, 'left': rewards[0].get(name), 'right': rewards[1].get(name)}
        for name in columns
    ]
    data: dict[str, Any] = {'left': sides[0], 'right': sides[1], 'differences': rows}
    tables = difference_tables(data)
    remarks = [] if rows else ['Their experiments are equal.']
    if study.space.why_no_value:
        remarks.append(f'Decisions only. {study.space.why_no_value}')
    elif rows and study.space.is_tunable:
        from paxtune.reports.architecture_tables import compared

        models = compared(study, *trials)
        data['architecture'] = models.data
        tables += models.tables
        remarks += models.problems
    return Document(data, [*rows, *about], ['path', 'left', 'right'], tables, '\n'.join(remarks))


def difference_tables(data: Mapping[str, Any]) -> list[Table]:
    """Renders the data of `difference`."""
    sides = [{**side, **side['rewards']} for side in (data['left'], data['right'])]
    left, right = (side['trial'] for side in sides)
    return [
        Table(sides, ['trial', 'state', *data['left']['rewards']]),
        Table(data['differences'], ['path', 'left', 'right'], f'Trial {left} → trial {right}'),
    ]


def _experiment(trial: Trial) -> Any:
    try:
        with unchecked():  # Infeasible experiments can be compared, too.
            return trial.materialize()
    except ValueError as error:
        raise UserError(f'trial {trial.id} makes no experiment: {error}') from error


def _side(value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else rendered(value)


def _algorithm(study: Study) -> Any:
    """The algorithm of a study; the one that the default stands for."""
    chosen = study.search.algorithm
    is_default = isinstance(chosen, Default)
    return chosen.resolved(study.space.spec, len(study.rewards)) if is_default else chosen


def _columns(study: Study, trials: Sequence[Trial], extra: Sequence[Column] = ()) -> list[Column]:
    return columns_of(trials, study.space, study.rewards, extra)


def _compact(
    study: Study, trials: Sequence[Trial], columns: Sequence[Column], title: str = ''
) -> Table:
    """Trials for people: without metrics, and decisions by short names."""
    # A reward has a header of its own, other columns have their keys.
    heads = [dataclasses.replace(e, key=e.header) if e.group == 'rewards' else e for e in columns]
    several = ['attempt'] if any(trial.attempt > 1 for trial in trials) else []
    reached = [each.key for each in columns if each.key == 'rung']
    rewards = [each.key for each in heads if each.group == 'rewards']
    added = sorted({f'attributes.{name}' for trial in trials for name in trial.attributes})
    names = ['trial', 'state', *several, *reached, *rewards, 'seconds', 'decisions', *added]
    rows = [row_of(trial, heads) for trial in trials]
    return Table.compact(rows, [*names, 'reason'], decision_names(study.space), title)


def best_tables(study: Study, best: Sequence[Trial], is_exact: bool = True) -> list[Table]:
    """Makes tables of the best trials: of one, with all digits if exact, or of a Pareto front."""
    if len(study.rewards) > 1:
        return [_compact(study, best, _columns(study, best), _FRONT)]
    tables = []
    for trial, repeated in zip(best, _replicates(study, best), strict=True):
        values = {study.rewards[0].label: trial.reward, **repeated, **trial.decisions}
        if is_exact:
            values = {name: exact(value) for name, value in values.items()}
        tables.append(_vertical(values, f'best: trial {trial.id}' if is_exact else '', 'value'))
    return tables


def _vertical(values: Mapping[str, Any], first: str, second: str) -> Table:
    rows = [{first: name, second: value} for name, value in values.items() if value is not None]
    return Table(rows, [first, second])


def _meant(columns: Sequence[Column], name: str, flag: str) -> list[Column]:
    """Columns by their own name or that for people, or by the name of a group."""
    rewards = [each for each in columns if each.group == 'rewards']
    if name == 'reward' and len(rewards) == 1:
        return rewards
    try:
        return [named(columns, name)]
    except UserError as error:
        if name in GROUPS and (group := [each for each in columns if each.group == name]):
            return group
        raise UserError(f'{flag}: {error}') from None
