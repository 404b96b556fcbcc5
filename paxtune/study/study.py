"""A study: its trials, on disk, and the next one."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyglove as pg

from paxtune.config.search import Search
from paxtune.objectives import pareto
from paxtune.objectives.rewards import NonFiniteRewardError
from paxtune.schedulers import Pause, Stop, TrialCurve
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.storage import vizier_protos
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.study_metadata import StudyRecord, refuse_changes, searched
from paxtune.storage.vizier_space import reader
from paxtune.storage.vizier_store import TrialProto, database, notes
from paxtune.study import replicates, stop_requests, transfer, validation
from paxtune.study.checkpoint_retention import require_weights
from paxtune.study.export import EndedTrial
from paxtune.study.scheduling import Advancing
from paxtune.study.suggester import Suggestions
from paxtune.study.trial import Trial
from paxtune.study.trial_queue import NextTrial
from trainer.runtime.directory import JobPath, job_path
from trainer.runtime.garbage_collection import collected_later
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import pandas

    from paxtune.service.remote_store import RemoteStore

    StudyStore: TypeAlias = LocalStore | RemoteStore


class Study:
    """Trials of one experiment: a Vizier study, in `<directory>/study.db` or in memory.

    Attributes:
        directory: where the study is; None for one in memory.
        value: what is searched, decisions and all: a `Tunable`, or any symbolic value.
        search: how it is searched.
        rewards: those of the search, one for each objective.
        signs: what makes scores of rewards, such that more is better: 1.0 or -1.0 for each.
        space: the search space.
        from_parameters: reads the decisions of its trials.
        data: fingerprints of the data that its trials see, by input.
        advancing: what its scheduler makes of its trials; None where it has no scheduler.
        store: where it is kept.

    Example:
        >>> import pyglove as pg
        >>> from paxtune import MetricReward, Search, Study
        >>> space = pg.Dict(x=pg.floatv(-1.0, 1.0))
        >>> study = Study.open(None, space, search=Search(MetricReward('minimize', 'y'), 5))
        >>> while (trial := study.ask()) is not None:
        ...     study.tell(trial, {'y': trial.materialize().x ** 2})
        >>> study.best.reward < 0.1
        True
        >>> study.close()
    """

    def __init__(
        self,
        directory: JobPath | None,
        value: Any,
        search: Search,
        space: Space,
        record: StudyRecord,
        store: 'StudyStore',
    ):
        """Not called directly: see `open` and `load`."""
        self.directory = directory
        self.value = value
        self.search = search
        # Looked up here once: to do so for each of thousands of trials takes seconds.
        self.rewards = search.rewards
        self.signs = [reward.score(1.0) for reward in self.rewards]
        self.space = space
        self.from_parameters = reader(space.spec)
        self.data = record.data
        self.store = store
        priors = transfer.past_trials(record.priors)
        self.suggestions = Suggestions(space, search, priors, lambda: self.trials)
        self._terminal: dict[int, Trial] = {}
        self._reading = threading.RLock()
        scheduler = search.scheduler
        self.advancing = None if scheduler is None else Advancing(self, scheduler)
        self._next = NextTrial(self)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str] | None,
        value: Any,
        data: Mapping[str, str] | None = None,
        *,
        search: Search | None = None,
        priors: Sequence['Study'] = (),
        store: 'StudyStore | None' = None,
    ) -> 'Study':
        """Makes a study, or resumes the one that is there.

        Args:
            directory: where its trials write, made if it is missing; None keeps the study in
                memory. A local one, unless a service keeps the study.
            value: what is searched: a `Tunable`, or any symbolic value with decisions in it.
            data: fingerprints of the data that its trials see, by input.
            search: how; None where `value.search` says it.
            priors: studies that the algorithm may learn from; used when the study is made.
            store: where it is kept; `<directory>/study.db` by default.

        Raises:
            UserError: the space cannot be searched, or the study that is there is of another
                experiment or of other data. The search's budgets may differ.
        """
        space, how = validation.checked(value, search)
        path = None if directory is None or store else database(directory)
        folder = None if directory is None else job_path(directory)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        store = store or LocalStore(Database(path))
        try:
            spec = store.study()
            if spec is None:
                learnt = transfer.priors(priors, space, how)
                # What is in memory is never read back: its values may be of any class.
                kept = pg.Dict() if folder is None else value
                record = StudyRecord.of(kept, search, space.spec, data or {}, learnt)
                algorithm = type(how.algorithm).__name__
                spec = vizier_protos.study_spec(
                    algorithm, how.rewards, space.spec, record.to_notes()
                )
                # Another process may have made it in the meantime.
                spec = None if store.create_study(spec) else store.study()
            if spec is not None:
                stored = StudyRecord.read(spec, folder)
                # What it learnt when it was made stays as it was.
                record = StudyRecord.of(value, search, space.spec, data or {}, stored.priors)
                refuse_changes(stored, record, folder)
                if record != stored:
                    store.write_study_notes(record.to_notes())
        except BaseException:
            store.close()
            raise
        return cls(folder, space.value, how, space, record, store)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], read_only: bool = True) -> 'Study':
        """Opens a study that is there, as it was made.

        Args:
            directory: where it is.
            read_only: leave it as it is; another process may be working on it.

        Raises:
            UserError: there is no study, or its experiment cannot be rebuilt.
        """
        path = database(directory)
        if not path.exists():
            raise UserError(f'There is no study in {path.parent}: {path.name} is missing.')
        return cls.join(LocalStore(Database(path, read_only)), path.parent)

    @classmethod
    def join(cls, store: 'StudyStore', directory: JobPath | None) -> 'Study':
        """Opens the study that a store holds, as it was made.

        Args:
            store: where it is kept; closed where this raises.
            directory: where its trials write; None where only others know.

        Raises:
            UserError: there is none, or its experiment cannot be rebuilt.
        """
        try:
            spec = store.study()
            if spec is None:
                raise UserError(f'There is no study in {directory}: nothing was written yet.')
            record = StudyRecord.read(spec, directory)
            value, search = searched(record, str(directory or 'the study'))
            return cls(directory, value, search, Space(value), record, store)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Closes the database."""
        self.stop_asking()
        self.store.close()

    def stop_asking(self) -> None:
        """Waits for a suggestion that is being made ahead; the next is made when one is asked for.

        Until then this process may write to the study.
        """
        self._next.stop_asking()

    def __enter__(self) -> 'Study':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def notes(self) -> dict[str, str]:
        """What is noted of the study, as it stands now."""
        spec = self.store.study()
        return {} if spec is None else notes(spec)

    @property
    def num_trials(self) -> int:
        """How many trials the study is to have, all in all."""
        wanted = self.search.num_trials
        if wanted is None:
            assert self.space.size is not None
            return self.space.size * self.search.repeats
        return wanted

    @property
    def sub_experiments(self) -> list[str]:
        """The names of what each trial trains, one after another; none where it trains one."""
        return self.space.sub_experiments

    @property
    def trials(self) -> list[Trial]:
        """All trials, by id, as they stand now."""
        with self._reading:
            return self._read()

    def _read(self) -> list[Trial]:
        # What is terminal stays as it is, and is not read again.
        found = self._terminal
        with collected_later():
            numbers, read = self.store.read(found)
            fresh = {trial.id: trial for trial in (Trial(proto, self) for proto in read)}
        found.update({trial.id: trial for trial in fresh.values() if trial.is_terminal})
        known = found | fresh
        if len(known) > len(numbers):  # Another process has deleted some.
            self._terminal = {number: found[number] for number in numbers if number in found}
        return [known[number] for number in numbers]

    def trial(self, number: int) -> Trial:
        """One trial.

        Raises:
            UserError: there is none of that number.
        """
        if (known := self._terminal.get(number)) is not None:
            return known
        try:
            return Trial(self.store.trial(number), self)
        except KeyError:
            newest = self.store.max_id()
            there = f'it has 1 to {newest}' if newest else 'it has none'
            where = self.directory or 'the study'
            raise UserError(f'{where} has no trial {number}: {there}') from None

    @property
    def candidates(self) -> list[Trial]:
        """The trials that can be the best: completed, and not stopped early."""
        return [
            trial
            for trial in self.trials
            if trial.state == 'COMPLETED' and trial.stop_reason is None
        ]

    @property
    def best(self) -> Trial | None:
        """The trial with the best reward, the first of equals; None where none was completed.

        Trials that were stopped early are not candidates, nor are infeasible ones. In a study with
        repeats it is a trial of the best decision: see `standings`.

        Raises:
            UserError: the study has several objectives: see `pareto_front`.
        """
        best = self.top(1)
        return best[0] if best else None

    def top(self, count: int) -> list[Trial]:
        """The best trials, best first; in a study with repeats one for each decision.

        Raises:
            UserError: the study has several objectives: see `pareto_front`.
        """
        rewards = self.rewards
        if len(rewards) > 1:
            labels = ', '.join(reward.label for reward in rewards)
            raise UserError(f'no trial is the best in several objectives ({labels}): see the front')
        if not rewards:
            return []
        return [each.trial for each in self.standings[:count]]

    @property
    def standings(self) -> list[replicates.Standing]:
        """How good decisions are, best first; by id with several objectives.

        Decisions with all of the search's repeats come first. In a study with repeats what counts
        is the mean, shrunk, so that a lucky trial does not pass for the best.
        """
        return replicates.standings(self.trials, self.search.repeats)

    @property
    def pareto_front(self) -> list[Trial]:
        """The trials that no other is better than in all objectives, by id.

        With one objective these are the trials with the best reward. In a study with repeats one
        trial stands for each decision: see `standings`.
        """
        found = self.standings if self.search.rewards else []
        found = [each for each in found if each.is_whole] or found
        front = [found[index].trial for index in pareto.front([each.scores for each in found])]
        return sorted(front, key=lambda trial: trial.id)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left in the space that was not tried and could be."""
        return self._next.is_exhausted(self.trials)

    @property
    def is_done(self) -> bool:
        """Whether the study needs no more trials: see `done_reason`."""
        return self.done_reason is not None

    @property
    def done_reason(self) -> str | None:
        """Why the study needs no more trials; None while it does."""
        return self._next.done_reason(self.trials)

    def suggest(self) -> Trial | None:
        """The next trial to run.

        A trial that was handed out before and not finished comes first, marked as `resumed`; then
        one that the scheduler promotes or forks; then those that were added; then a new one. Where
        the algorithm asks ahead, the one after it is made from now on, in a thread.

        Returns:
            The trial; None when the study is done.

        Raises:
            SuggestionError: the algorithm raised.
            UserError: nothing in the space satisfies its constraints.
        """
        return self._next.take()

    ask = suggest

    def start(self, decisions: Decisions, notes: Mapping[str, str]) -> Trial:
        """Adds a trial that something else than the study's algorithm has proposed. It is ACTIVE.

        Args:
            decisions: legal ones, all of them.
            notes: what there is to know of it.
        """
        return self._add(decisions, notes, TrialProto.State.ACTIVE)

    def _add(self, decisions: Decisions, notes: Mapping[str, str], state: int) -> Trial:
        proto = vizier_protos.new_trial(self.space.spec, decisions, notes, state)
        return Trial(self.store.add_trial(proto), self)

    def add(
        self,
        decisions: Mapping[str, Any],
        *,
        retry_of: int | None = None,
        warm_start: int | None = None,
        origin: str = 'added',
        repeat: Mapping[str, str] | None = None,
    ) -> Trial:
        """Adds a trial with given decisions, which will run before new suggestions.

        Args:
            decisions: {path: value}, as `Trial.decisions`; what is left out is drawn at random.
            retry_of: the trial that it repeats.
            warm_start: the trial whose weights it begins with.
            origin: where the decisions are from.
            repeat: notes of which repeat of what it is, if it is one.

        Raises:
            UserError: the decisions are none of the space, or what they make is infeasible.
        """
        number = self.store.max_id() + 1
        drawn = self.suggestions.completed(decisions, number)
        notes = {'origin': origin, **(repeat or {})}
        for name, value in (('retry_of', retry_of), ('warm_start', warm_start)):
            if value is not None:
                other = self.trial(value)
                if name == 'warm_start' and (not other.is_terminal or other.is_imported):
                    raise UserError(
                        f'trial {value} has no weights here that another can begin with'
                    )
                if name == 'warm_start':
                    require_weights(self, other)
                notes[name] = str(value)
        return self._add(drawn, notes, TrialProto.State.REQUESTED)

    def add_ended(self, trials: Iterable[EndedTrial]) -> None:
        """Adds trials that ran elsewhere, all of them in one transaction."""
        ended = []
        for trial in trials:
            state = TrialProto.State.SUCCEEDED if trial.final else TrialProto.State.INFEASIBLE
            proto = vizier_protos.new_trial(self.space.spec, trial.decisions, trial.notes, state)
            proto.measurements.extend(map(vizier_protos.to_proto, trial.measurements))
            proto.end_time.GetCurrentTime()
            proto.infeasible_reason = trial.infeasible
            if trial.final is not None:
                proto.final_measurement.CopyFrom(vizier_protos.to_proto(trial.final))
            ended.append(proto)
        self.store.add_trials(ended)

    def retry(self, number: int) -> Trial:
        """Adds a trial with the decisions of another one, which it names.

        Raises:
            UserError: there is no such trial, or it has not ended.
        """
        old = self.trial(number)
        if not old.is_terminal:
            raise UserError(
                f'trial {number} is {old.state}: only one that has ended can be retried'
            )
        again = {'repeat_of': str(old.repeat_of or ''), 'repeat': str(old.repeat)}
        return self.add(
            old.decisions,
            retry_of=number,
            warm_start=old.warm_start,
            origin='retry',
            repeat=again if old.repeat > 1 else None,
        )

    def confirm(self, count: int = 5, times: int = 3) -> list[Trial]:
        """Adds repeats of the best decisions, which will run before new suggestions.

        Args:
            count: how many decisions; with several objectives all of the front are meant.
            times: how often each is to be tried, all in all.

        Returns:
            The trials that were added; none where these decisions have been tried so often.

        Raises:
            UserError: there is no reward, nothing was completed, or weights are gone that a trial
                would begin with.
        """
        if not self.rewards:
            raise UserError('no reward says which trials are the best: there is none to confirm')
        best = self.standings[:count]
        if len(self.rewards) > 1:
            front = {trial.id for trial in self.pareto_front}
            best = [each for each in self.standings if each.trial.id in front]
        if not best:
            raise UserError(f'no trial of {self.directory or "the study"} was completed')
        missing = [each for standing in best for each in standing.decision.missing(times)]
        for first, _ in missing:
            if first.warm_start is not None:
                require_weights(self, self.trial(first.warm_start))
        return [
            self._add(first.by_id, replicates.notes_of(first, repeat), TrialProto.State.REQUESTED)
            for first, repeat in missing
        ]

    def tell(
        self,
        trial: Trial,
        metrics: Mapping[str, float] | float | None = None,
        *,
        step: int | None = None,
        infeasible: str | None = None,
    ) -> None:
        """Finishes a trial that `ask` has handed out.

        A reward that is NaN or infinite makes the trial infeasible.

        Args:
            trial: the trial.
            metrics: what was measured at its end, a number being the metric of the reward where
                that is one; None where it has reported all.
            step: the step of the metrics; after the last one by default.
            infeasible: why no reward can be said to belong to its decisions.

        Raises:
            RuntimeError: the trial has ended already, or nothing was measured.
            MissingMetricError: a metric that the reward needs is missing.
        """
        if infeasible is not None:
            trial.fail(infeasible)
            return
        if isinstance(metrics, int | float):
            metrics = {metric.name: metrics for reward in self.rewards for metric in reward.metrics}
        try:
            if metrics is not None:
                trial.report(trial.step + 1 if step is None else step, metrics)
            trial.complete()
        except NonFiniteRewardError as error:
            trial.fail(str(error))

    def decide(self, trial: Trial) -> Stop | Pause | None:
        """What the scheduler makes of a trial, judged at the step that it reported last.

        Returns:
            What is to be done, with the reason for `Trial.stop` or `Trial.pause`; None if the
            trial goes on.
        """
        return None if self.advancing is None else self.advancing.decide(trial)

    def curves(self) -> list[TrialCurve]:
        """What the scheduler may know of the trials, those that are infeasible left out.

        Raises:
            ValueError: the study has no scheduler.
        """
        if self.advancing is None:
            raise ValueError('the study has no scheduler')
        return self.advancing.curves(self.trials)

    def delete_trial(self, number: int) -> None:
        """Deletes a trial from the study, whatever its state. Its directory is left alone.

        Raises:
            UserError: there is no such trial.
        """
        self.trial(number)
        self.store.delete_trial(number)
        stop_requests.forget(self.store, number)
        with self._reading:
            self._terminal.pop(number, None)

    def to_pandas(self) -> 'pandas.DataFrame':
        """A row for each trial, by id.

        Returns:
            Columns: state, rewards by their labels, `decisions.<path>`, `metrics.<name>` (final
            ones), attempt, origin, parent, repeat, repeat_of, reason, created, completed, seconds.
            Decisions that a trial does not have are missing.
        """
        from paxtune.study.frames import trials_frame

        return trials_frame(self)
