"""Parts that several documents on a study have in common."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from paxtune.analysis.checks import Check
from paxtune.analysis.range_edges import at_edges
from paxtune.reports.tables import Table, to_text
from paxtune.schedulers import rung_report
from paxtune.study import stopping_criteria
from paxtune.study.columns import decision_names
from paxtune.study.reasons import commonest
from paxtune.study.record import Status
from paxtune.study.study import Study
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.worker_logs import NUMBERS

_GIB = 2**30
_HEADINGS = ('CPU', 'memory', 'peak', 'device memory', 'device peak')
_RUNGS = 'Rungs, and the rank correlation of rewards there with later ones'


def rungs_table(rungs: Sequence[Mapping[str, Any]], title: str = _RUNGS) -> Table:
    """Renders the rungs of `rungs_of`."""
    return Table(rungs, rung_report.COLUMNS, title)


def decisions_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Renders the decisions of a space."""
    return Table(rows, ['path', 'legal', 'scale', 'condition'], 'Decisions')


def infeasible_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Renders the commonest reasons of infeasible trials."""
    return Table(rows, ['count', 'reason'], 'Commonest reasons of infeasible trials')


def exact(value: Any) -> Any:
    """Renders a number with all of its digits; returns any other value unchanged."""
    return repr(value) if isinstance(value, float) else value


def with_decisions(
    study: StudyView, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> Table:
    """A table whose last column has the decisions that differ between rows, by short names."""
    compact = Table.compact(rows, [columns[0], 'decisions'], decision_names(study.space))
    return dataclasses.replace(compact, columns=[*columns, 'decisions'])


def checks_table(found: Sequence[Check], title: str = 'Checks') -> Table:
    """Renders checks of a study, warnings first."""
    ordered = sorted(found, key=lambda each: not each.is_warning)
    rows = [
        {
            'check': each.kind,
            'result': 'warning' if each.is_warning else 'passed',
            'message': each.message,
        }
        for each in ordered
    ]
    return Table(rows, ['check', 'result', 'message'], title)


def workers_table(rows: list[dict[str, Any]]) -> Table:
    """Renders the resources of workers for people."""
    rendered = [
        {'worker': row['worker'], 'time': row['time']}
        | {
            heading: _rendered(name, row[name])
            for name, heading in zip(NUMBERS, _HEADINGS, strict=True)
            if name in row
        }
        for row in rows
    ]
    return Table(rendered, ['worker', 'time', *_HEADINGS], 'Workers')


def _rendered(name: str, value: float) -> str:
    return f'{value:.0f} %' if name == 'cpu_percent' else f'{value / _GIB:.2f} GiB'


def rungs_of(study: Study) -> tuple[list[dict[str, Any]], str]:
    """The report on the rungs of a study's scheduler, and remarks.

    They describe the rungs of the scheduler, and warn if ranks changed after a rung.

    Nothing of a study without a scheduler, or with another number of rewards than one.
    """
    scheduler = study.scheduler
    if scheduler is None or len(study.rewards) != 1:
        return [], ''
    curves = study.curves()
    found = rung_report.rung_report(curves, scheduler)
    findings = scheduler.findings(curves, study.rewards[0])
    remarks = [*findings, rung_report.warning(found, scheduler.unit)]
    return [dataclasses.asdict(rung) for rung in found], '\n'.join(filter(None, remarks))


def rungs_text(study: Study) -> list[str]:
    """The same as text; nothing if there is nothing to say."""
    passed, remark = rungs_of(study)
    texts = [to_text(rungs_table(passed)), remark] if passed else []
    return [text for text in texts if text]


def edges_text(study: StudyView) -> list[str]:
    """Renders the decisions of the best trial that lie at the edge of their range."""
    best = study.best
    found = {} if best is None else at_edges(study.space.spec, best.by_id)
    if not found:
        return []
    return [
        'At the edge of their range, which a wider one may improve:',
        *(f'  {path} ({low!r} to {high!r})' for path, (low, high) in found.items()),
    ]


def train_command(study: StudyView, trial: Trial, exp: str | None = None) -> str:
    """The command that trains a trial alone, as ordinary training; '' if there is none.

    Args:
        study: of the trial. One of a function has nothing to train.
        trial: the trial.
        exp: the experiment whose module has the classes; that of the study by default.
    """
    exp = exp or study.record.exp
    # A `Tunable` of a class that is missing here holds its search. A path names no study elsewhere.
    is_trained = hasattr(study.space.value, 'parts') or (exp and not study.record.search)
    if not is_trained or study.directory is None:
        return ''
    known = [f'--exp={exp}'] if exp else []
    which = 'best' if len(study.rewards) == 1 and study.best is trial else str(trial.id)
    target = [f'--trial={which}', f'--job_log_dir={study.directory}/best-{trial.id}']
    source = [f'--study_dir={study.directory}', *study.store.flags]
    return shlex.join(['python', '-m', 'paxtune.train', *known, *source, *target])


_MAX_REASONS = 5


def budgets(study: Study, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Lists the used part of each budget, and its limit; None without one."""
    search = study.search
    failures = sum(trial.is_failed for trial in trials)
    rows: list[tuple[str, float | None, float | None]] = [
        ('trials', len(trials), study.num_trials),
        ('hours', stopping_criteria.hours(trials), search.budget.hours),
        ('device hours', stopping_criteria.device_hours(trials), search.budget.device_hours),
        ('failures', failures, search.faults.max_failures),
    ]
    if search.budget.target_reward is not None:
        best = study.leaderboard[:1]
        rows.append(('reward', best[0].rewards[0] if best else None, search.budget.target_reward))
    return [{'budget': name, 'used': used, 'limit': limit} for name, used, limit in rows]


def reasons(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Counts the commonest reasons of infeasible trials."""
    found = commonest(
        trial.reason for trial in trials if trial.status is Status.INFEASIBLE and trial.reason
    )
    return [{'count': count, 'reason': reason} for count, reason in found[:_MAX_REASONS]]
