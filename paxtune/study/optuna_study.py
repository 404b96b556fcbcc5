"""Studies as studies of Optuna, for its plots and its dashboard."""

import datetime
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyglove as pg

from paxtune.objectives.rewards import Reward
from paxtune.search_space.decisions import DecisionPoint, decision_points, is_integer, slots
from paxtune.search_space.labels import parameter_path
from paxtune.search_space.space import Space
from paxtune.study.columns import Column, columns_of, reward_columns, row_of
from paxtune.study.record import Status
from paxtune.study.trial import Trial
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import optuna

_STATES = {
    Status.COMPLETED: 'COMPLETE',
    Status.STOPPED: 'PRUNED',
    Status.INFEASIBLE: 'FAIL',
    Status.ACTIVE: 'RUNNING',
    Status.PAUSED: 'RUNNING',
    Status.REQUESTED: 'WAITING',
}

_OWN = ('state', 'created', 'completed')  # Optuna has fields for these.

_Parameters: TypeAlias = Mapping[str, tuple[str, Any]]
"""Optuna's name and distribution of each decision, by id."""


def to_optuna(
    trials: Iterable[Trial],
    space: Space,
    rewards: Sequence[Reward],
    metadata: Mapping[str, str],
    storage: 'str | optuna.storages.BaseStorage | None' = None,
    name: str | None = None,
) -> 'optuna.study.Study':
    """Makes a study of Optuna; see `StudyView.to_optuna`."""
    with extras.needed('optuna', 'to_optuna'):
        import optuna
    if not rewards:
        raise UserError('to_optuna: a study of Optuna needs an objective, and this one has none')
    kinds = optuna.study.StudyDirection
    directions = [kinds.MAXIMIZE if each.score(1.0) > 0 else kinds.MINIMIZE for each in rewards]
    study = optuna.create_study(storage=storage, study_name=name, directions=directions)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(reward_columns(rewards))
    for key, value in metadata.items():
        study.set_user_attr(key, value)
    parameters, trials = _parameters(space), list(trials)
    columns = [
        each
        for each in columns_of(trials, space, [])
        if each.group in ('', 'metrics') and each.key not in _OWN
    ]
    study.add_trials([_frozen(trial, parameters, columns) for trial in trials])
    return study


def _parameters(space: Space) -> _Parameters:
    found: dict[str, Any] = {}
    for point in decision_points(space.spec):
        for slot in slots(point):
            found[slot.id.path] = _distribution(slot, space)
    by_path: dict[str, list[Any]] = {}
    for id_, domain in found.items():
        by_path.setdefault(parameter_path(id_), []).append(domain)
    # Optuna has one distribution for each name.
    ambiguous = {path for path, each in by_path.items() if any(one != each[0] for one in each)}
    return {
        id_: (id_ if (path := parameter_path(id_)) in ambiguous else path, domain)
        for id_, domain in found.items()
    }


def _distribution(point: DecisionPoint, space: Space) -> Any:
    from optuna import distributions

    if isinstance(point, pg.geno.Choices):
        names = space.candidate_names(point)
        # To Optuna, True and 1 are one choice.
        return distributions.CategoricalDistribution(
            names if len(set(names)) == len(names) else list(map(repr, names))
        )
    is_log = point.scale == 'log'
    if is_integer(point):
        low, high = int(point.min_value), int(point.max_value)
        return distributions.IntDistribution(low, high, log=is_log)
    return distributions.FloatDistribution(point.min_value, point.max_value, log=is_log)


def _frozen(
    trial: Trial, parameters: _Parameters, columns: Sequence[Column]
) -> 'optuna.trial.FrozenTrial':
    from optuna.trial import TrialState, create_trial

    named = [(*parameters[id_], value) for id_, value in trial.by_id.items()]
    domains = {name: domain for name, domain, _ in named}
    # A choice has its index as its internal representation, a number itself.
    params = {name: domain.to_external_repr(value) for name, domain, value in named}
    state = TrialState[_STATES[trial.status]]
    is_waiting = state is TrialState.WAITING
    frozen = create_trial(
        state=state,
        values=list(trial.rewards) or None,
        # As `Study.enqueue_trial` does.
        params={} if is_waiting else params,
        distributions={} if is_waiting else domains,
        system_attrs={'fixed_params': params} if is_waiting else {},
        user_attrs=_attributes(trial, columns),
        intermediate_values={
            each.step: each.reward for each in trial.measurements if each.reward is not None
        },
    )
    if not is_waiting:
        claims = (each.time for each in trial.record.history if each.event == 'claimed')
        frozen.datetime_start = _local(next(claims, trial.created))
    if trial.completed is not None:
        frozen.datetime_complete = _local(trial.completed)
    return frozen


def _attributes(trial: Trial, columns: Sequence[Column]) -> dict[str, Any]:
    known = {key: value for key, value in row_of(trial, columns).items() if value is not None}
    own = {
        name if name not in known else f'attributes.{name}': value
        for name, value in trial.attributes.items()
    }
    return {**trial.record.metadata, **own, **known}


def _local(time: datetime.datetime) -> datetime.datetime:
    """Converts a time to Optuna's: local, without a time zone."""
    return time.astimezone().replace(tzinfo=None)
