"""The reading half of a study."""

import collections
from typing import TYPE_CHECKING, Any, Literal, Self

from paxtune.objectives.rewards import Reward
from paxtune.search_space.parameters import reader
from paxtune.study import replicates
from paxtune.study.plan import SearchPlan
from paxtune.study.reasons import commonest
from paxtune.study.record import Status, StudyRecord, TrialRecord
from paxtune.study.record_checks import DamagedRecordError
from paxtune.study.store import StudyStore
from paxtune.study.study_html import study_html
from paxtune.study.trial import Trial, TrialContext
from paxtune.study.trial_table import Trials, TrialTable
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import optuna
    import pandas


class StudyView:
    """The trials of one experiment, as they stand when they are read.

    Attributes:
        directory: the directory of the study; None for one in memory.
        value: the searched value with its decisions: a `Tunable`, or any symbolic value.
        search: the configuration of the search.
        scheduler: the search's or the default one; None to train all trials to their ends.
        space: the search space.
        data: fingerprints of the data that its trials see, by input.
        store: keeps the study.
        interrupted: an interrupt ended the search of a study in memory (`paxtune.tune`).
    """

    interrupted = False

    def __init__(self, directory: JobPath | None, plan: SearchPlan, store: StudyStore) -> None:
        """Not called directly: see `paxtune.storage.open_study`."""
        self.directory, self.store, self.data = directory, store, plan.data
        self.search, self.space, self.value = plan.search, plan.space, plan.space.value
        self.scheduler = plan.scheduler
        # Looked up once: for thousands of trials that takes seconds.
        self.rewards: list[Reward] = self.search.rewards
        signs = [reward.score(1.0) for reward in self.rewards]
        self.context = TrialContext(signs, self.space, reader(self.space.spec), directory)
        self._table = TrialTable(self.space.short_names, directory or 'the study')

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.directory or "in memory"})'

    def _repr_html_(self) -> str:
        trials = self.current
        best = [each.trial for each in self.winners(len(trials))]
        where = str(self.directory or 'in memory')
        return study_html(where, trials, best, self.rewards, self.space.short_names)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    @property
    def record(self) -> StudyRecord:
        """The record of the study, as it stands now."""
        record = self.store.study()
        assert record is not None
        return record

    @property
    def trials(self) -> Trials:
        """All trials, by id, as they stand now."""
        return self.current.copy()

    @property
    def current(self) -> Trials:
        """The same as `trials`, without a copy: callers do not change the list."""
        return self._table.read(self.store, self._fitting)

    def _fitting(self, record: TrialRecord) -> Trial:
        """Makes a trial; raises DamagedRecordError where it is of another space or has no end."""
        trial = Trial(record, self.context)
        try:
            trial.by_id  # noqa: B018 (kept by the trial)
        except UserError as error:
            raise DamagedRecordError(str(error)) from error
        if record.created is None:
            raise DamagedRecordError('it was never added')
        if trial.final is not None and len(trial.rewards) != len(self.rewards):
            raise DamagedRecordError(
                f'it has {len(trial.rewards)} rewards, and the study {len(self.rewards)}'
            )
        return trial

    def trial(self, number: int | Literal['best']) -> Trial:
        """Returns one trial, or the best; raises UserError if there is none."""
        if number == 'best':
            if (best := self.best) is None:
                where = self.directory or 'the study'
                if not self.rewards:
                    raise UserError(f'no trial of {where} is the best: it has no objective')
                raise UserError(f'no trial of {where} was completed{self._ends()}')
            return best
        if (known := self._table.ended(number)) is not None:
            return known
        try:
            return self._fitting(self.store.trial(number))
        except KeyError:
            newest = self.store.max_id()
            there = f'it has 1 to {newest}' if newest else 'it has none'
            where = self.directory or 'the study'
            raise UserError(f'{where} has no trial {number}: {there}') from None

    def _ends(self) -> str:
        """Counts trials by state, with the commonest reason of infeasible ones."""
        trials = self.current
        counts = collections.Counter(str(trial.status) for trial in trials)
        states = ', '.join(f'{count} {state}' for state, count in sorted(counts.items()))
        found = commonest(trial.reason or '' for trial in trials if trial.state == 'INFEASIBLE')
        return f' ({states or "it has none"})' + (f': {found[0][1]}' if found else '')

    @property
    def candidates(self) -> list[Trial]:
        """Trials that can be the best: completed, and not stopped early."""
        return [trial for trial in self.current if trial.status is Status.COMPLETED]

    @property
    def best(self) -> Trial | None:
        """The trial with the best reward, the first of equals; None if none was completed.

        Infeasible trials, and those that were stopped early, do not count. In a study with
        replicates it is a trial of the best configuration: see `leaderboard`.

        Raises:
            UserError: the study has several objectives: see `pareto_front`.
        """
        best = self.top(1)
        return best[0] if best else None

    @property
    def best_trial(self) -> Trial:
        """The same as `best`, for a study that must have one.

        Raises:
            UserError: no trial was completed, or the study has no objective, or several.
        """
        return self.trial('best')

    @property
    def best_params(self) -> dict[str, Any]:
        """The decisions of `best_trial`, by path; raises as it does."""
        return {**self.best_trial.decisions}

    @property
    def best_value(self) -> float:
        """The reward of `best_trial`; raises as it does."""
        return self.best_trial.rewards[0]

    def top(self, count: int) -> list[Trial]:
        """Returns the best trials, best first; with replicates one for each configuration.

        Raises:
            UserError: the study has several objectives: see `pareto_front`.
        """
        if len(self.rewards) > 1:
            labels = ', '.join(reward.label for reward in self.rewards)
            raise UserError(f'no trial is the best in several objectives ({labels}): see the front')
        return [each.trial for each in self.winners(count)]

    @property
    def leaderboard(self) -> list[replicates.LeaderboardEntry]:
        """Ranked configurations, best first; by id with several objectives.

        Configurations with all replicates come first. With replicates the mean counts, shrunk, so
        that a lucky trial is not the best.
        """
        return replicates.leaderboard(self.current, self.search.replicates)

    @property
    def pareto_front(self) -> list[Trial]:
        """Trials that no other trial beats in all objectives, by id.

        With one objective these are the trials with the best reward. With replicates one trial
        represents each configuration: see `leaderboard`.
        """
        found = replicates.front(self.leaderboard) if self.rewards else []
        return sorted((each.trial for each in found), key=lambda trial: trial.id)

    def winners(self, count: int) -> list[replicates.LeaderboardEntry]:
        """Returns the best configurations; with several objectives, those of the front."""
        if len(self.rewards) > 1:
            return replicates.front(self.leaderboard)
        wanted = self.search.replicates
        return replicates.top(self.current, wanted, count) if self.rewards else []

    def to_pandas(self) -> 'pandas.DataFrame':
        """Makes a table with a row for each trial, by id.

        Returns:
            Columns: state, rewards by their labels, `decisions.<path>`, `metrics.<name>` (final
            ones), `attributes.<name>`, attempt, origin, parent, replicate, replicate_of, reason,
            created, completed, seconds. Decisions that a trial does not have are missing.
        """
        from paxtune.study.columns import trials_frame

        return trials_frame(self.current, self.space, self.rewards)

    def to_optuna(
        self, storage: 'str | optuna.storages.BaseStorage | None' = None, name: str | None = None
    ) -> 'optuna.study.Study':
        """Makes a study of Optuna, for `optuna.visualization` and Optuna's dashboard.

        Trials keep their order; Optuna counts from 0, and the user attribute `trial` has our
        number. Trials that were stopped early are pruned, infeasible ones have failed, and paused
        ones are running. Rewards by step are intermediate values of a study with one objective.
        Metrics and attributes are user attributes. Parameters have the paths of decisions. Where a
        path stands for several decisions that differ, their ids distinguish them.

        Args:
            storage: URL or storage of Optuna; None for memory.
            name: name of the study; None for a name that Optuna makes.

        Raises:
            UserError: the study has no reward, or Optuna is not installed.
            optuna.exceptions.DuplicatedStudyError: the storage has a study of this name.
        """
        from paxtune.study.optuna_study import to_optuna

        metadata = self.record.metadata
        return to_optuna(self.current, self.space, self.rewards, metadata, storage, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
