"""The content of a report on a study, in sections that are the same in each format."""

import collections
import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paxtune.analysis.checks import checks
from paxtune.analysis.importance import MIN_TRIALS, importances
from paxtune.analysis.range_edges import at_edges
from paxtune.reports.next_trial import next_trials
from paxtune.reports.study_parts import (
    budgets,
    checks_table,
    decisions_table,
    exact,
    infeasible_table,
    reasons,
    rungs_of,
    rungs_table,
    with_decisions,
)
from paxtune.reports.tables import Table
from paxtune.search_space.decision_rows import rows as decision_rows
from paxtune.search_space.labels import display_value
from paxtune.study import replicates
from paxtune.study.columns import reward_columns
from paxtune.study.known_values import in_words
from paxtune.study.record import Status
from paxtune.study.replicates import LeaderboardEntry
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.symbolic.extras import MissingExtraError

_IMPORTANCE = 'Importance of decisions'
_MAX_BEST = 10
_MAX_EDGES = 5
"""Best trials whose decisions are compared with the ends of their ranges."""


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        key: names it in JSON.
        data: its content as JSON data.
        tables: the same for people.
        remarks: lines below the tables.
        commands: lines of a shell, below the remarks.
    """

    key: str
    title: str
    data: Any
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()
    commands: Sequence[str] = ()


def sections(study: Study, where: str, train_command: str) -> list[Section]:
    """Reports on a study.

    Args:
        where: its directory, or its place in a service.
        train_command: trains the best trial; '' if no command does.
    """
    trials = study.trials
    return [
        _searched(study, where),
        _how(study, trials),
        _progress(study, trials),
        _best(study, trials),
        _checks(study),
        _importance(study),
        _edges(study),
        _next(study),
        _commands(study, train_command),
        _versions(study),
    ]


def to_data(parts: Iterable[Section]) -> dict[str, Any]:
    """The content of a report as JSON data."""
    return {each.key: each.data for each in parts}


def _facts(values: Mapping[str, Any], heading: str) -> Table:
    rows = [(name, value) for name, value in values.items() if value not in (None, '', [])]
    return Table.of('', [heading, 'value'], rows)


def _searched(study: Study, where: str) -> Section:
    decisions = [dataclasses.asdict(row) for row in decision_rows(study.space)]
    facts = {
        'experiment': study.record.experiment,
        'study': where,
        'created': study.store.created(),
        'size': study.space.size,
    }
    constraints = [display_value(each) for each in study.search.constraints]
    limits = [each.label for each in study.search.limits]
    rendered = facts | {'size': study.space.size_text}
    conditions = [('constraint', each) for each in constraints]
    conditions += [('limit', each) for each in limits]
    return Section(
        'searched',
        'What was searched',
        facts | {'decisions': decisions, 'constraints': constraints, 'limits': limits},
        [
            _facts(rendered, 'search space'),
            decisions_table(decisions),
            Table.of('Constraints and limits', ['kind', 'condition'], conditions),
        ],
    )


def _how(study: Study, trials: Sequence[Trial]) -> Section:
    search = study.search
    algorithm = display_value(study.suggester.algorithm)
    facts = {
        'objective': [f'{each.label} ({each.goal})' for each in study.rewards],
        'algorithm': algorithm,
        'scheduler': display_value(study.scheduler),
        'seed': search.seed,
        'metric aggregation': display_value(search.metric_aggregation),
        'replicates': search.replicates,
        'warm start': search.warm_start,
        'initial trials': len(search.initial_trials) or None,
        'known values': in_words(study.space, study.record.known or {}) or None,
        'completed trials of other studies': len(study.record.priors) or None,
    }
    limits = [row for row in budgets(study, trials) if row['limit'] is not None or row['used']]
    rendered = facts | {
        'objective': ', '.join(facts['objective']) or 'none: trials are only measured'
    }
    return Section(
        'how',
        'How it was searched',
        facts | {'budgets': limits},
        [_facts(rendered, 'search'), Table(limits, ['budget', 'used', 'limit'], 'Budget')],
    )


def _progress(study: Study, trials: Sequence[Trial]) -> Section:
    counts = collections.Counter(trial.status for trial in trials)
    failures = [trial.record.failures for trial in trials]
    faults = {
        'failed with an error': sum(trial.is_failed for trial in trials),
        'attempts after the first': sum(trial.attempt - 1 for trial in trials),
        'trials with lost workers': sum(bool(each.faults or each.losses) for each in failures),
        'trials with metrics that were not finite': sum(
            bool(trial.record.non_finite) for trial in trials
        ),
    }
    states = {str(status): counts[status] for status in Status if counts[status]}
    infeasible = reasons(trials)
    rungs, warning = rungs_of(study)
    done, warnings = study.done_reason, [warning] if warning else []
    return Section(
        'progress',
        'States and faults',
        {'states': states, 'faults': faults, 'done': done, 'infeasible': infeasible}
        | ({'rungs': rungs} if rungs else {}),
        [
            Table.of('', ['state', 'trials'], states.items()),
            Table.of('Faults', ['fault', 'count'], faults.items()),
            infeasible_table(infeasible),
            rungs_table(rungs, 'Rungs, and rank correlations with later rewards'),
        ],
        [f'The study is done: {done}.' if done else 'The study is not done.', *warnings],
    )


def _best(study: Study, trials: Sequence[Trial]) -> Section:
    entries = study.winners(_MAX_BEST)
    title = 'Pareto front' if len(study.rewards) > 1 else 'Best trials'
    has_replicates = replicates.has_replicates(trials, study.search.replicates)
    rows = [_entry(study, rank, each, has_replicates) for rank, each in enumerate(entries, start=1)]
    numbers = [name for name in rows[0] if not name.startswith('decisions.')] if rows else []
    if len(study.rewards) > 1:
        numbers = [name for name in numbers if name != 'rank']
    tables = [with_decisions(study, rows, numbers)] if rows else []
    if entries and len(study.rewards) == 1:
        decided = entries[0].trial.decisions.items()
        heading = f'Decisions of trial {entries[0].trial.id}'
        tables.append(
            Table.of(heading, ['decision', 'value'], [(path, exact(own)) for path, own in decided])
        )
    if entries:
        remarks = [_uncertainty(has_replicates)]
    elif any(trial.status is Status.COMPLETED for trial in trials):
        remarks = ['The search has no objective: no trial is better than another.']
    else:
        remarks = ['No trial was completed yet.']
    return Section('best', title, rows, tables, remarks)


def _entry(
    study: Study, rank: int, entry: LeaderboardEntry, has_replicates: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {'rank': rank, 'trial': entry.trial.id}
    columns = reward_columns(study.rewards)
    for index, (name, mean) in enumerate(zip(columns, entry.rewards, strict=True)):
        row[name] = mean
        if has_replicates:
            # Scores have the sign that makes more of them better.
            row[f'± {name}'] = entry.standard_errors[index]
            row[f'expected {name}'] = study.rewards[index].score(1.0) * entry.scores[index]
    if has_replicates:
        row['replicates'] = len(entry.trials)
    return row | {f'decisions.{path}': own for path, own in entry.trial.decisions.items()}


def _uncertainty(has_replicates: bool) -> str:
    if has_replicates:
        return (
            'A reward is the mean of the replicates, ± its standard error. The expected reward is '
            'that mean, shrunk towards the median of all: the best of many noisy means is too good.'
        )
    return (
        'Each trial ran once, so the noise of the rewards is unknown. paxtune.studies confirm '
        'adds replicates of the best trials.'
    )


def _checks(study: Study) -> Section:
    found = checks(study)
    remarks = [] if found else ['There is too little to check yet.']
    data = [dataclasses.asdict(each) for each in found]
    return Section('checks', 'Checks', data, [checks_table(found, title='')], remarks)


def _importance(study: Study) -> Section:
    try:
        return _importance_of(study)
    except MissingExtraError as error:
        return Section('importance', _IMPORTANCE, [], [], [f'{error}'])


def _importance_of(study: Study) -> Section:
    labels = reward_columns(study.rewards)
    shares: dict[str, dict[str, Any]] = {}
    columns = ['decision']
    for label in labels:
        for each in importances(study, label).decisions:
            row = shares.setdefault(each.path, {'decision': each.path})
            row[f'fANOVA of {label}'] = each.fanova
            row[f'impurity of {label}'] = each.impurity
        columns += [f'fANOVA of {label}', f'impurity of {label}']
    rows = list(shares.values())
    rendered = [
        {name: own if isinstance(own, str) else f'{own:.1%}' for name, own in row.items()}
        for row in rows
    ]
    remark = (
        'Shares of the variance that each decision explains alone (fANOVA), and of the mean '
        'decrease in impurity.'
        if rows
        else f'Importance needs {MIN_TRIALS} completed trials with different rewards.'
    )
    return Section('importance', _IMPORTANCE, rows, [Table(rendered, columns)], [remark])


def _edges(study: Study) -> Section:
    found: dict[str, dict[str, Any]] = {}
    for trial in (each.trial for each in study.winners(_MAX_EDGES)):
        for path, (low, high) in at_edges(study.space.spec, trial.by_id).items():
            row = found.setdefault(path, {'decision': path, 'low': low, 'high': high, 'trials': []})
            row['trials'].append(trial.id)
    rendered = [row | {'trials': ', '.join(map(str, row['trials']))} for row in found.values()]
    remark = (
        'A wider range may improve these decisions, whose best values lie at an edge.'
        if found
        else 'No best value lies at an edge of its range.'
    )
    table = Table(rendered, ['decision', 'low', 'high', 'trials'])
    return Section('edges', 'Edges of ranges', list(found.values()), [table], [remark])


def _next(study: Study) -> Section:
    rows, remark = next_trials(study)
    rendered = [
        {'trial': row['trial'], 'origin': row['origin']}
        | {f'decisions.{path}': own for path, own in row['decisions'].items()}
        for row in rows
    ]
    tables = [with_decisions(study, rendered, ['trial', 'origin'])] if rendered else []
    data = {'trials': rows, 'remark': remark or None}
    return Section('next', 'Next trials', data, tables, [remark] if remark else [])


def _commands(study: Study, train_command: str) -> Section:
    made = study.record.provenance
    again = shlex.join(['python', '-m', *made.command]) if made.command else ''
    remarks, commands = [], []
    if again and study.directory is not None:
        again = _elsewhere(made.command, f'{study.directory}-repeated')
    elif again:
        remarks.append('In the same service, the repeated search needs another --study.')
    if again:
        commands += ['# Repeats the search.', again]
    else:
        remarks.append('The study does not record a command: Python code made it, or a service.')
    if train_command:
        commands += ['# Trains the best trial.', train_command]
    data = {'repeat': again or None, 'train': train_command or None}
    return Section('commands', 'Commands', data, [], remarks, commands)


def _elsewhere(command: Sequence[str], directory: str) -> str:
    """A command with another --job_log_dir."""
    flags, skips = [], False
    for each in command:
        if not skips and not each.startswith('--job_log_dir='):
            flags.append(each)
        skips = each == '--job_log_dir'
    kept = [each for each in flags if each != '--job_log_dir']
    return shlex.join(['python', '-m', *kept, f'--job_log_dir={directory}'])


def _versions(study: Study) -> Section:
    made = study.record.provenance
    facts = {**made.versions, 'commit': made.commit}
    remarks = [] if made.versions else ['The study does not record the versions that made it.']
    data = {'versions': dict(made.versions), 'commit': made.commit or None}
    return Section('versions', 'Versions', data, [_facts(facts, 'package')], remarks)
