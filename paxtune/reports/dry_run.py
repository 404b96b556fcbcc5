"""A search before anything starts: its plan, its space, its costs and its time."""

import collections
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyglove as pg

from paxtune.reports.space_costs import costs, show_costs
from paxtune.reports.space_tables import samples, show
from paxtune.reports.tables import Table, print_line, print_table
from paxtune.search_space.decisions import all_slots
from paxtune.study.default_scheduler import default_scheduler
from paxtune.study.known_values import interval, name_of
from paxtune.study.record import Status
from trainer import command
from trainer.symbolic.errors import in_short

if TYPE_CHECKING:
    from rich.console import Console

    from paxtune.config.budget import Budget
    from paxtune.config.search import Search
    from paxtune.search_space.decisions import Decisions
    from paxtune.search_space.space import Space
    from paxtune.storage.preview import Preview
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial
    from trainer.symbolic.component import Component

_COSTED, _SEED = 16, 0
_TRIAL_FILES = 'checkpoints, metrics, summaries, experiment.json'


class Place(Protocol):
    """Where trials would run: an engine."""

    has_workers: ClassVar[bool]
    keeps_study: ClassVar[bool]

    @property
    def description(self) -> str:
        """As of `Engine`."""

    @property
    def trials_at_once(self) -> int:
        """As of `Engine`."""

    @property
    def trials_per_process(self) -> int:
        """As of `Engine`."""


def show_dry_run(preview: 'Preview', engine: Place, console: 'Console') -> None:
    """Prints the plan of a search, its space, and the costs of some samples.

    One sample is compiled for its memory, which may take a while: that line is the last.

    Args:
        preview: the study of the search.
        engine: would run the trials.
    """
    study = preview.study
    space = study.space
    print_line(console, 'A dry run: nothing is written, and nothing starts.')
    if preview.replaced:
        print_line(console, preview.replaced)
    rows = [{'part': name, 'plan': text} for name, text in plan_lines(preview, engine)]
    print_table(console, Table(rows, ['part', 'plan']))
    show(space, console, ())
    if known := _known_rows(study):
        print_table(
            console, Table(known, ['decision', 'value', 'usually', 'reason'], 'Known values')
        )
    decided = samples(space, _COSTED, _SEED)
    show_costs(costs(space, decided), console)
    print_line(console, f'Device memory: {_memory_text(space, decided)}')


def plan_lines(preview: 'Preview', engine: Place) -> 'Iterator[tuple[str, str]]':
    """Yields the parts of a plan, each with its text."""
    study = preview.study
    search = study.search
    yield 'experiment', study.record.exp
    yield 'study', _state(preview)
    yield 'directory', _directory(preview)
    yield 'contents', _contents(engine)
    goals = (f'{reward.goal} {reward.label}' for reward in study.rewards)
    yield 'objective', ', '.join(goals) or 'none: trials are only measured'
    yield 'algorithm', _algorithm(study)
    yield 'scheduler', _scheduler(study)
    yield 'known values', _known(study)
    yield from _defaults(search)
    yield 'budget', _budget(search.budget, study.num_trials)
    if search.replicates > 1:
        yield 'replicates', f'{search.replicates} trials of each decision'
    if search.constraints:
        yield 'constraints', ', '.join(map(_component, search.constraints))
    if priors := study.record.priors:
        counts = collections.Counter(each.source for each in priors)
        studies = (f'{command.counted(n, "trial")} of {name}' for name, n in counts.items())
        yield 'learns from', ', '.join(studies)
    yield 'trials run', engine.description
    yield 'time', _time(study, engine.trials_at_once // engine.trials_per_process)


def _state(preview: 'Preview') -> str:
    study = preview.study
    trials = study.trials
    counts = collections.Counter(trial.status for trial in trials)
    counted = ', '.join(f'{counts[how]} {how}' for how in Status if counts[how])
    counted_trials = command.counted(len(trials), 'trial')
    if preview.is_new:
        start = f', begins with {counted_trials} ({counted})' if trials else ''
        return ('new: replaces one without rewards' if preview.replaced else 'new') + start
    if (reason := study.done_reason) is not None:
        return f'done: {reason} ({counted})'
    return f'resumes with {counted_trials}' + (f' ({counted})' if counted else '')


def _directory(preview: 'Preview') -> str:
    return f'{preview.directory}' + ('' if preview.directory.exists() else ' (would be made)')


def _contents(engine: Place) -> str:
    where = 'study.db, study.json, ' if engine.keeps_study else ''
    logs = ', logs/ of workers' if engine.has_workers else ''
    return f'{where}study.uuid{logs}, trials/NUMBER-…/ ({_TRIAL_FILES})'


def _algorithm(study: 'Study') -> str:
    from paxtune.algorithms import Default

    chosen = study.suggester.algorithm
    given = study.search.algorithm
    if not isinstance(given, Default):
        return _component(chosen)
    why = given.why(study.space.spec, len(study.rewards))
    return f'{_component(chosen)}, the default for {why}'


def _scheduler(study: 'Study') -> str:
    text = _component(study.scheduler) or 'none: all trials train to their ends'
    if study.search.scheduler != 'default':
        return text
    return f'{text}, the default for {default_scheduler(study.search, study.space)[1]}'


def _defaults(search: 'Search') -> 'Iterator[tuple[str, str]]':
    """Yields parts of a search that have defaults, with the reason for a default."""
    for name, field, reason in (
        ('seed', 'seed', 'the same seed gives the same trials'),
        ('final metrics', 'metric_aggregation', 'a trial counts by its last evaluation'),
        ('faults', 'faults', f'a crashed trial has {search.faults.max_attempts} attempts'),
        ('retention', 'retention', f'the {search.retention.best} best trials keep checkpoints'),
    ):
        value = search.sym_getattr(field)
        is_default = pg.eq(value, type(search).__schema__.get_field(field).default_value)
        text = _component(value) if isinstance(value, pg.Object) else str(value)
        yield name, f'{text}, the default: {reason}' if is_default else text


def _known(study: 'Study') -> str:
    known = study.record.known or {}
    if study.search.prior is None:
        return 'none, as --prior=none says'
    if not study.suggester.algorithm.uses_prior:
        return f'none: {type(study.suggester.algorithm).__name__} uses none'
    if not known:
        return 'none: neither the experiment nor its fields have usual values'
    count = command.counted(len(study.space.ids), 'decision')
    return f'of {len(known)} of {count}, below; --prior=none searches without them'


def _known_rows(study: 'Study') -> list[dict[str, Any]]:
    slots = {slot.id.path: slot for slot in all_slots(study.space.spec)}
    rows = []
    for id_, known in (study.record.known or {}).items():
        ends = interval(slots[id_], known)
        usually = '' if ends is None else f'{ends[0]:.3g} to {ends[1]:.3g}'
        value = name_of(study.space, id_, known)
        rows.append({'decision': id_, 'value': value, 'usually': usually, 'reason': known.reason})
    return rows


def _component(value: 'Component | None') -> str:
    return '' if value is None else str(value.format(compact=True, hide_default_values=True))


def _budget(budget: 'Budget', num_trials: int | None) -> str:
    limits = {
        'trials': num_trials,
        'hours': budget.hours,
        'device hours': budget.device_hours,
    }
    parts = [f'{limit:,g} {name}' for name, limit in limits.items() if limit is not None]
    if budget.target_reward is not None:
        parts.append(f'until a reward of {budget.target_reward:g}')
    return ', '.join(parts)


def _time(study: 'Study', processes: int) -> str:
    # The seconds of a packed trial are its share of the seconds of its process.
    trials = study.trials
    if study.is_done:
        return 'nothing is left to do'
    own = [each for each in trials if each.is_terminal and not each.lineage.is_imported]
    if not own:
        return 'unknown before a first trial has ended'
    if study.num_trials is None:
        return 'all hours of the budget'
    left = study.num_trials - sum(trial.is_terminal for trial in trials)
    seconds = mean_seconds(own)
    total = seconds * left / min(processes, max(left, 1))
    mean = f'{_duration(seconds)}, the mean of {len(own)}'
    return f'about {_duration(total)} for {command.counted(left, "trial")} of {mean}'


def mean_seconds(trials: 'Sequence[Trial]') -> float:
    """The mean time of trials, with the time of their suggestions."""
    return statistics.fmean(each.seconds + each.record.suggest_seconds for each in trials)


def _duration(seconds: float) -> str:
    for unit, size in (('h', 3600.0), ('min', 60.0)):
        if seconds > 1.5 * size:
            return f'{seconds / size:.1f} {unit}'
    return f'{seconds:.1f} s'


def _memory_text(space: 'Space', decided: 'Sequence[Decisions]') -> str:
    """Compiles the first feasible sample, and renders the device memory that it needs."""
    import jax

    from paxtune.experiment import Tunable
    from trainer.program.costs import memory_cost

    reason = 'no sample is feasible'
    for decisions in decided:
        try:
            experiment = space.materialize(decisions)
            parts = experiment.parts() if isinstance(experiment, Tunable) else {'': experiment}
            needed = max(memory_cost(part)['device_memory_bytes'] for part in parts.values())
        # As for all costs of samples, an impossible model is a reason. Others may be possible.
        except Exception as error:
            reason = in_short(error)
            continue
        return f'{needed:,.0f} bytes for one sample, as compiled for {jax.default_backend()} here'
    return f'unknown: {reason}'
