"""A study: its trials, on disk, and the next one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vizier import pyvizier as vz
from vizier._src.service import study_pb2
from vizier.service import pyvizier as svz

from paxtune.parameters import to_search_space
from paxtune.space import Space
from paxtune.study_record import REWARD, StudyRecord, refuse_changes
from paxtune.trial import Trial
from trainer.component import Component
from trainer.errors import UserError
from trainer.serialization import from_json_text

if TYPE_CHECKING:
    from paxtune.experiment import Search
    from paxtune.service import Service

_DATABASE = 'study.db'


class Searchable(Protocol):
    """A component with decisions in it that says how to search them, such as a `Tunable`."""

    search: 'Search'


class Study:
    """Trials of one experiment, kept by Vizier's service in `<directory>/study.db`.

    Attributes:
        directory: where the study is.
        tunable: the experiment, decisions and all.
        space: its search space.
        data: fingerprints of the data that its trials see, by input.
    """

    def __init__(
        self,
        directory: Path,
        tunable: Searchable,
        space: Space,
        data: Mapping[str, str],
        service: 'Service',
    ):
        """Not called directly: see `open` and `load`."""
        self.directory = directory
        self.tunable = tunable
        self.space = space
        self.data = data
        self._service = service
        self._terminal: dict[int, Trial] = {}

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        tunable: Searchable,
        data: Mapping[str, str] | None = None,
    ) -> 'Study':
        """Makes a study, or resumes the one that is there.

        Args:
            directory: a local directory; made if it is missing.
            tunable: the experiment.
            data: fingerprints of the data that its trials see, by input.

        Raises:
            UserError: the space cannot be searched, or the study that is there is of another
                experiment or of other data. `search.num_trials` may differ.
        """
        space = Space(tunable)
        _refuse_search_decisions(space)
        path = _database(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        service = _open_service(path)
        try:
            config = service.study_config()
            record = StudyRecord.of(tunable, space.spec, data or {})
            if config is None:
                service.create_study(_study_spec(tunable, space, record))
            else:
                refuse_changes(StudyRecord.from_metadata(config.metadata), record, path.parent)
        except BaseException:
            service.close()
            raise
        return cls(path.parent, tunable, space, record.data, service)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> 'Study':
        """Reads a study, which another process may be working on. Nothing can be written.

        Raises:
            UserError: there is no study, or its experiment cannot be rebuilt.
        """
        path = _database(directory)
        if not path.exists():
            raise UserError(f'There is no study in {path.parent}: {path.name} is missing.')
        service = _open_service(path, read_only=True)
        try:
            config = service.study_config()
            if config is None:
                raise UserError(f'There is no study in {path}: nothing was written yet.')
            record = StudyRecord.from_metadata(config.metadata)
            tunable: Any = from_json_text(record.experiment, Component, source=str(path))
            return cls(path.parent, tunable, Space(tunable), record.data, service)
        except BaseException:
            service.close()
            raise

    def close(self) -> None:
        """Closes the database."""
        self._service.close()

    def __enter__(self) -> 'Study':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def num_trials(self) -> int:
        """How many trials the study is to have, all in all."""
        return self.tunable.search.num_trials

    @property
    def trials(self) -> list[Trial]:
        """All trials, by id, as they stand now."""
        search = self.tunable.search
        client = self._service.client
        found = dict(self._terminal)
        for record in self._service.trials(known=set(self._terminal)):
            found[record.id] = Trial(record, self.space, search.reward, client)
        # What is terminal stays as it is, and is not read again.
        self._terminal = {number: trial for number, trial in found.items() if trial.is_terminal}
        return [found[number] for number in sorted(found)]

    @property
    def best(self) -> Trial | None:
        """The trial with the best reward, the first of equals.

        Trials that were stopped early are not candidates, nor are infeasible ones.
        """
        score = self.tunable.search.reward.score
        rewards = [
            (score(trial.reward), -trial.id, trial)
            for trial in self.trials
            if trial.reward is not None and trial.stop_reason is None
        ]
        return max(rewards)[-1] if rewards else None

    @property
    def exhausted(self) -> bool:
        """Whether every experiment of the space was tried."""
        return self._exhausted(self.trials)

    @property
    def is_done(self) -> bool:
        """Whether all `num_trials` are terminal, or all that the space has."""
        return self._is_done(self.trials)

    def _is_done(self, trials: list[Trial]) -> bool:
        if not all(trial.is_terminal for trial in trials):
            return False
        return len(trials) >= self.num_trials or self._exhausted(trials)

    def _exhausted(self, trials: list[Trial]) -> bool:
        size = self.space.size
        if size is None or len(trials) < size:
            return False
        return len({tuple(trial.decisions.items()) for trial in trials}) >= size

    def finish_stopping(self) -> list[Trial]:
        """Completes the trials whose process died in the middle of `Trial.stop`.

        Returns:
            All trials.
        """
        trials = self.trials
        for trial in trials:
            if not trial.is_terminal and trial.stop_reason is not None:
                trial.finish_stopping()
        return trials

    def suggest(self) -> Trial | None:
        """The next trial to run.

        A trial that was handed out before and not finished comes first, marked as `resumed`.

        Returns:
            The trial; None when all `num_trials` are terminal, or the space is `exhausted`.

        Raises:
            SuggestionError: the algorithm raised.
        """
        trials = self.finish_stopping()
        if self._is_done(trials):
            return None
        waiting = {trial.id for trial in trials if trial.state == 'ACTIVE'}
        record = self._service.suggest()
        return Trial(
            record,
            self.space,
            self.tunable.search.reward,
            self._service.client,
            resumed=record.id in waiting,
        )

    def should_stop(self, trial: Trial) -> str | None:
        """Whether early stopping ends a trial, judged at the step that it reported last.

        Returns:
            The reason, for `Trial.stop`; None if the trial goes on.
        """
        search = self.tunable.search
        own = [measurement for measurement in trial.measurements if measurement.step <= trial.step]
        if search.early_stopping is None or not own:
            return None
        others = [
            other.measurements
            for other in self.trials
            if other.id != trial.id and other.state != 'INFEASIBLE'
        ]
        return search.early_stopping.should_stop(own, others, search.reward)


def _open_service(path: Path, read_only: bool = False) -> 'Service':
    # Imported here: it imports JAX, and whoever only reads `--help` need not wait for that.
    from paxtune.service import Service

    return Service(path, read_only)


def _database(directory: str | os.PathLike[str]) -> Path:
    if '://' in os.fspath(directory):
        raise UserError(
            f'--job_log_dir={os.fspath(directory)}: {_DATABASE} is an SQLite file, which needs a '
            'local disk. Use a local directory.'
        )
    return Path(directory) / _DATABASE


def _study_spec(tunable: Searchable, space: Space, record: StudyRecord) -> study_pb2.StudySpec:
    goal = vz.ObjectiveMetricGoal[tunable.search.reward.goal.upper()]
    metric = vz.MetricInformation(REWARD, goal=goal)
    study_spec = svz.StudyConfig(
        metric_information=[metric],  # type: ignore[list-item]
        algorithm=type(tunable.search.algorithm).__name__,
        metadata=record.to_metadata(),
    ).to_proto()
    study_spec.parameters.extend(to_search_space(space.spec))
    return study_spec


def _refuse_search_decisions(space: Space) -> None:
    for id_ in space.ids:
        if id_ == 'search' or id_.startswith('search.'):
            raise UserError(f'{id_}: the search itself cannot be searched. Give it a value.')
