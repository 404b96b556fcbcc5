"""Trials as runs of MLflow."""

import contextlib
import itertools
import os
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paxtune.integrations.tracker import Tracker
from paxtune.search_space.decision_rows import rows
from paxtune.study.record import Status
from trainer.symbolic import extras

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_STATUSES = {
    Status.COMPLETED: 'FINISHED',
    Status.STOPPED: 'FINISHED',
    Status.INFEASIBLE: 'FAILED',
    Status.ACTIVE: 'RUNNING',
}
_STUDY, _TRIAL, _PARENT = 'paxtune.study', 'paxtune.trial', 'mlflow.parentRunId'
_STUDY_RUN = '0'  # The number in the tags of the study's own run.
_BATCH, _MAX_CHARACTERS = 100, 5000  # Limits of MLflow's service.


class MlflowCallback(Tracker):
    """Shows a study in MLflow: a run, and a nested run for each trial.

    Decisions are parameters, measurements are metrics by step. Tags have the state of a trial, its
    reason and its reward. The run of the study has its search and its decisions as parameters, and
    the best reward by the number of ended trials as a metric. A trial that resumes continues its
    run, which is found by its tags. An error of MLflow is a warning, and ends no search.

    Example:
        >>> MlflowCallback('http://127.0.0.1:5000', experiment='language models')
        MlflowCallback()
    """

    TOOL = 'MLflow'

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str = 'paxtune',
        timeout: float = 10.0,
    ) -> None:
        """Prepares a callback; MLflow is contacted when the study starts.

        Args:
            tracking_uri: of the server or the store; None for MLflow's own settings, such as
                MLFLOW_TRACKING_URI.
            experiment: the name of MLflow's experiment; made where there is none.
            timeout: seconds after which a call fails, unless the environment has
                MLFLOW_HTTP_REQUEST_TIMEOUT. MLflow itself tries for many minutes.

        Raises:
            UserError: MLflow is not installed.
        """
        super().__init__()
        with extras.needed('mlflow', 'MlflowCallback'):
            import mlflow
        self._mlflow: Any = mlflow
        self._uri, self._experiment_name, self._timeout = tracking_uri, experiment, timeout
        self._client: Any = None
        self._experiment = self._study = self._parent = ''

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        with super()._warned(), _limited(self._timeout):
            yield

    def _open(self, study: 'Study') -> None:
        self._client = self._mlflow.MlflowClient(self._uri)
        found = self._client.get_experiment_by_name(self._experiment_name)
        self._experiment = (
            self._client.create_experiment(self._experiment_name)
            if found is None
            else found.experiment_id
        )
        record = study.record
        self._study, directory = record.uuid, study.directory
        name = record.exp or (record.experiment if directory is None else directory.name)
        self._parent = self._resumed_or_made(_STUDY_RUN, name, {})
        self._client.update_run(self._parent, status='RUNNING')
        algorithm = type(study.suggester.algorithm).__name__
        known = {} if directory is None else {'directory': str(directory)}
        self._set_tags(self._parent, {'algorithm': algorithm, **known})
        # A parameter stays as it is. The number of trials may change later.
        logged = self._client.get_run(self._parent).data.params
        new = {name: each for name, each in _facts(study).items() if name not in logged}
        self._log_params(self._parent, new)

    def _begin(self, study: 'Study', trial: 'Trial') -> str:
        run = self._resumed_or_made(str(trial.id), f'trial {trial.id}', {_PARENT: self._parent})
        names = valid_names(study.space.paths)
        self._log_params(run, {names[path]: value for path, value in trial.decisions.items()})
        return run

    def _log(self, run: str, step: int, values: Mapping[str, float]) -> None:
        entities, now = self._mlflow.entities, int(time.time() * 1000)
        names = valid_names(values)
        metrics = [entities.Metric(names[name], value, now, step) for name, value in values.items()]
        self._log_all(run, metrics=metrics)

    def _show(self, run: str, trial: 'Trial', facts: Mapping[str, Any]) -> None:
        status = _STATUSES.get(trial.status, 'SCHEDULED')
        if trial.is_terminal:
            assert trial.completed is not None
            ended = int(trial.completed.timestamp() * 1000)
            self._client.set_terminated(run, status, ended)
        else:
            is_left = facts['state'] == 'interrupted'
            self._client.update_run(run, 'SCHEDULED' if is_left else status)
        self._set_tags(run, facts)

    def _stand(self, study: 'Study') -> None:
        if len(study.rewards) == 1 and (best := study.best) is not None:
            ended = sum(trial.is_terminal for trial in study.current)
            self._log(self._parent, ended, {'best_reward': best.rewards[0]})

    def _end(self, study: 'Study') -> None:
        if len(study.rewards) == 1 and (best := study.best) is not None:
            self._set_tags(self._parent, {'best_trial': best.id, 'reward': best.reward})
        if study.is_done:
            self._client.set_terminated(self._parent, 'FINISHED')
        else:
            self._client.update_run(self._parent, 'SCHEDULED')

    def _resumed_or_made(self, trial: str, name: str, tags: Mapping[str, str]) -> str:
        own = {_STUDY: self._study, _TRIAL: trial}
        conditions = [f"tags.`{tag}` = '{value}'" for tag, value in own.items()]
        found = self._client.search_runs([self._experiment], ' and '.join(conditions))
        if not found:
            found = [self._client.create_run(self._experiment, tags=own | {**tags}, run_name=name)]
        return str(found[0].info.run_id)

    def _set_tags(self, run: str, facts: Mapping[str, Any]) -> None:
        make = self._mlflow.entities.RunTag
        self._log_all(
            run,
            tags=[
                make(f'paxtune.{name}', str(value)[:_MAX_CHARACTERS])
                for name, value in facts.items()
            ],
        )

    def _log_params(self, run: str, values: Mapping[str, Any]) -> None:
        make = self._mlflow.entities.Param
        params = [make(name, str(value)[:_MAX_CHARACTERS]) for name, value in values.items()]
        self._log_all(run, params=params)

    def _log_all(self, run: str, **entities: list[Any]) -> None:
        for kind, listed in entities.items():
            for batch in _batches(listed):
                self._client.log_batch(run, **{kind: batch})


def _facts(study: 'Study') -> dict[str, str]:
    """The search of a study and the decisions of its space, as parameters of its run."""
    scheduler = study.scheduler
    facts = {
        'objective': ', '.join(reward.label for reward in study.rewards) or 'none',
        'algorithm': type(study.suggester.algorithm).__name__,
        'scheduler': 'none' if scheduler is None else type(scheduler).__name__,
        'seed': str(study.search.seed),
    }
    for row in rows(study.space):
        is_plain = row.scale in ('', 'linear')
        name, legal = f'space/{row.path}', row.legal if is_plain else f'{row.legal} ({row.scale})'
        facts[name] = f'{facts[name]}; {legal}' if name in facts else legal
    names = valid_names(facts)
    return {names[name]: each for name, each in facts.items()}


@contextlib.contextmanager
def _limited(timeout: float) -> Iterator[None]:
    """Limits the time that MLflow tries, unless the environment already does."""
    limits = {
        'MLFLOW_HTTP_REQUEST_TIMEOUT': str(max(round(timeout), 1)),
        'MLFLOW_HTTP_REQUEST_MAX_RETRIES': '1',
    }
    added = {name: value for name, value in limits.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def valid_names(names: Iterable[str]) -> dict[str, str]:
    """Maps names to distinct ones that MLflow accepts.

    Example:
        >>> valid_names(['layers[0].kind', 'layers(0).kind', '/loss'])
        {'layers[0].kind': 'layers_0_.kind', 'layers(0).kind': 'layers_0_.kind_2', '/loss': 'loss'}
    """
    made: dict[str, str] = {}
    for name in names:
        valid = posixpath.normpath(re.sub(r'[^\w\-. :/]', '_', name)).strip('/.') or '_'
        numbered = (f'{valid}_{number}' for number in itertools.count(2))
        taken = set(made.values())
        made[name] = next(each for each in itertools.chain([valid], numbered) if each not in taken)
    return made


def _batches(entities: list[Any]) -> list[list[Any]]:
    return [entities[at : at + _BATCH] for at in range(0, len(entities), _BATCH)]
