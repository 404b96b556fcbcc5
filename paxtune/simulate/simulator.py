"""Studies on a table of recorded curves: the study's own scheduler on a virtual clock."""

import dataclasses
import datetime
import heapq
import itertools
from collections.abc import Sequence

from paxtune.algorithms import Algorithm, Exhausted, Observation, SuggestionContext
from paxtune.objectives.measurement import Measurement, last_reward
from paxtune.schedulers import Fork, Pause, Promote, Scheduler, Stop
from paxtune.schedulers.base import Unit
from paxtune.schedulers.resources import METRICS
from paxtune.search_space.decisions import Decisions
from paxtune.simulate.result import Progress, Run, SimulatedTrial
from paxtune.simulate.table import CurveTable, Row
from paxtune.study import schedule, transitions
from paxtune.study.observations import observe, with_predicted_ends
from paxtune.study.record import SCHEDULER, Lineage, Status, TrialRecord
from paxtune.study.schedule import Claim, Done, Suggest, View
from paxtune.study.scheduling import TrialScheduling
from paxtune.study.trial import Trial, TrialContext
from trainer.symbolic.errors import UserError

_START = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_WORKER = 'simulated'


def simulate(
    table: CurveTable,
    scheduler: Scheduler | None,
    algorithm: Algorithm,
    *,
    num_trials: int,
    workers: int = 1,
    seed: int = 0,
    target: float | None = None,
) -> Run:
    """Runs a study on recorded curves. The same arguments give the same run.

    With one worker it makes the decisions of a real study. A free worker asks the scheduler: a
    promoted trial goes on at once, and a forked one waits. Then comes the first trial that waits,
    then a new suggestion, unless the scheduler says to wait. A waiting worker asks again after each
    measurement.

    Training takes as long as it took, or a unit of time for each step where the table has no
    seconds. Compilation, evaluation and saving take no time.

    A promoted trial goes on where it was. The decisions in a table are constant. So a forked trial
    has its parent's measurement at the step of the fork, and from there on the curve of the row
    next to its own decisions.

    Args:
        scheduler: decides how far trials are trained; None trains all to their ends.
        num_trials: the number of trials, forked ones included.
        workers: the number of trials that run at once.
        target: the reward at whose first completion the run ends; None runs all trials.

    Raises:
        UserError: the table lacks the scheduler's unit, or has too few rows.
    """
    require_rows(table, scheduler, num_trials)
    study = _Study(table, scheduler, algorithm.resolved(table.spec, 1), num_trials, seed, target)
    return study.run(workers)


def require_rows(table: CurveTable, scheduler: Scheduler | None, num_trials: int) -> None:
    """Raises UserError unless a table has the scheduler's unit, and enough rows."""
    unit: Unit = 'steps' if scheduler is None else scheduler.unit
    if unit not in table.units:
        raise UserError(
            f'the scheduler counts resources in {unit}, which were not measured for all trials '
            f'of the table: it has {", ".join(table.units)}'
        )
    if num_trials > len(table.rows):
        raise UserError(
            f'{num_trials} trials cannot be simulated: the table has {len(table.rows)} of them'
        )


@dataclasses.dataclass
class _Training:
    """The simulated training of a trial. Evaluations before its fork count."""

    row: int
    recorded: Row
    clock: Sequence[float]  # The time of each evaluation, from the first step.
    used: Sequence[float]  # The resource at each evaluation.
    decisions: Decisions
    max_resource: float | None  # At its end; None where it is unknown.
    past: int = 0  # Evaluations that have passed.
    began_at: int = 0  # The same when it began, or went on, last.
    began: float = 0.0
    cost: float = 0.0  # Until it left its worker last.

    def at(self, past: int) -> float:
        """The time of an evaluation, counted from the first step."""
        return self.clock[past - 1] if past else 0.0


class _Study:
    def __init__(
        self,
        table: CurveTable,
        scheduler: Scheduler | None,
        algorithm: Algorithm,
        num_trials: int,
        seed: int,
        target: float | None,
    ) -> None:
        self.table, self.algorithm = table, algorithm
        self.num_trials, self.seed, self.target = num_trials, seed, target
        self.unit: Unit = 'steps' if scheduler is None else scheduler.unit
        self.most = max(row.resources[self.unit][-1] for row in table.rows if row.end is not None)
        self.trials: dict[int, Trial] = {}
        self.training: dict[int, _Training] = {}
        self.context = TrialContext([table.reward.score(1.0)], read_parameters=_decisions)
        self.scheduling: TrialScheduling | None = None
        if scheduler is not None:
            self.scheduling = TrialScheduling(
                scheduler,
                [table.reward],
                table.spec,
                lambda trial: self.training[trial.id].max_resource,
            )
        self.answers = table.start()
        self.is_exhausted = self.is_over = False
        self.now = 0.0
        self.progress: list[Progress] = []
        self._best: float | None = None
        # The cost of trials that left their workers; of the running ones, the sum of their starts.
        self._paid = self._starts = 0.0
        self._num_running = 0
        self._events: list[tuple[float, int, int]] = []
        self._order = itertools.count()

    def run(self, workers: int) -> Run:
        """Runs until nothing runs and nothing can begin."""
        self._begin_all(workers)
        while self._events and not self.is_over:
            self.now, _, id_ = heapq.heappop(self._events)
            if self._evaluated(id_):
                self._schedule(id_)
            if self._num_running < workers and not self.is_over:
                self._begin_all(workers)
        trials = [self._simulated(trial) for trial in self.trials.values()]
        return Run(self.table, trials, self.progress, self._compute, self.now)

    def _simulated(self, trial: Trial) -> SimulatedTrial:
        record, training = trial.record, self.training[trial.id]
        is_running = record.status is Status.ACTIVE
        details = [event.detail for event in record.history if event.event != 'ended']
        reason = next((each for each in reversed(details) if each), None)
        return SimulatedTrial(
            trial.id,
            training.row,
            training.decisions,
            record.status,
            trial.reward if trial.is_terminal else last_reward(trial.measurements),
            training.cost + (self.now - training.began if is_running else 0.0),
            record.pauses,
            record.lineage.forked_from,
            record.lineage.replaces,
            record.reason if record.status is Status.STOPPED else reason,
            tuple(map(self._recorded, record.measurements)),
        )

    @property
    def _compute(self) -> float:
        return self._paid + self._num_running * self.now - self._starts

    @property
    def _time(self) -> datetime.datetime:
        return _START + datetime.timedelta(seconds=self.now)

    def _show(self, record: TrialRecord) -> TrialRecord:
        self.trials[record.id] = Trial(record, self.context)
        return record

    # --- Running trials ---

    def _begin_all(self, workers: int) -> None:
        while self._num_running < workers and (id_ := self._next()) is not None:
            self._begin(id_)

    def _begin(self, id_: int) -> None:
        training = self.training[id_]
        training.began, training.began_at = self.now, training.past
        self._starts += self.now
        self._num_running += 1
        # A run that begins at an evaluation repeats it, with another decision.
        if not self.trials[id_].measurements or self._goes_on(id_):
            self._schedule(id_)

    def _schedule(self, id_: int) -> None:
        training = self.training[id_]
        # Without a scheduler only ends are events.
        past = len(training.clock) if self.scheduling is None else training.past + 1
        then = training.began + training.at(past) - training.at(training.began_at)
        heapq.heappush(self._events, (then, next(self._order), id_))

    def _evaluated(self, id_: int) -> bool:
        """Passes the next evaluation of a trial. Returns True if the trial goes on."""
        training = self.training[id_]
        row, end = training.recorded, len(training.clock)
        past = end if self.scheduling is None else training.past + 1
        record = self.trials[id_].record
        for index in range(training.past, min(past, len(row.measurements))):
            record = transitions.report(record, self._measurement(training, index), ())
        self._show(record)
        training.past = past
        if past < end:
            return self._goes_on(id_)
        self._leave(id_)
        if row.end is None:
            self._show(transitions.fail(record, 'it diverged, as was recorded', self._time))
        else:
            last_step = max((each.step for each in record.measurements), default=0)
            final = Measurement(last_step, {}, (row.end,))
            self._show(transitions.complete(record, final, self._time))
            self._completed(row.end)
        return False

    def _measurement(self, training: _Training, index: int) -> Measurement:
        measured = training.recorded.measurements[index]
        if self.unit == 'steps':
            return measured
        used = {METRICS[self.unit]: training.used[index]}
        return dataclasses.replace(measured, metrics={**measured.metrics, **used})

    def _recorded(self, measured: Measurement) -> Measurement:
        """The measurement without the resource that `_measurement` has added."""
        added = METRICS.get(self.unit)
        metrics = {name: value for name, value in measured.metrics.items() if name != added}
        return dataclasses.replace(measured, metrics=metrics)

    def _goes_on(self, id_: int) -> bool:
        if self.scheduling is None:
            return True
        trial = self.trials[id_]
        step = trial.measurements[-1].step
        decision = self.scheduling.decide_on(trial, step, list(self.trials.values()))
        if isinstance(decision, Pause):
            self._show(transitions.pause(trial.record, step, decision.reason, self._time))
        elif isinstance(decision, Stop):
            self._stop(id_, decision.reason)
        else:
            return True
        self._leave(id_)
        return False

    def _leave(self, id_: int) -> None:
        training = self.training[id_]
        took = self.now - training.began
        training.cost += took
        self._paid += took
        self._starts -= training.began
        self._num_running -= 1

    def _stop(self, id_: int, reason: str) -> None:
        trial = self.trials[id_]
        if rewarded := [each for each in trial.measurements if each.step in trial.score_curve]:
            record = transitions.complete(
                trial.record, rewarded[-1], self._time, reason=reason, is_stopped=True
            )
        else:
            record = transitions.fail(trial.record, reason, self._time)
        self._show(record)

    def _completed(self, reward: float) -> None:
        score = self.table.reward.score
        if self._best is None or score(reward) > score(self._best):
            self._best = reward
            self.progress.append(Progress(self.now, self._compute, reward))
        if self.target is not None and score(reward) >= score(self.target):
            self.is_over = True

    # --- Beginning trials ---

    def _next(self) -> int | None:
        """Returns the trial that a free worker runs next; None where there is none now."""
        while True:
            action = schedule.next_action(self._view())
            if isinstance(action, Done):
                self._end_paused()
                return None
            if isinstance(action, Promote):
                paused = self._paused(action.trial).record
                self._show(transitions.promote(paused, paused.paused_at, action.reason, self._time))
            elif isinstance(action, Fork):
                self._fork(action)
            elif isinstance(action, Claim):
                return self._claim()
            elif not isinstance(action, Suggest) or not self._suggest():
                return None

    @property
    def _records(self) -> list[TrialRecord]:
        return [trial.record for trial in self.trials.values()]

    def _view(self) -> View:
        return View(
            count=len(self.trials),
            unended=[each for each in self._records if not each.status.has_ended],
            num_trials=self.num_trials,
            is_exhausted=self.is_exhausted or self.answers.left == 0,
            budget_used=None,
            decide=self._decide,
            has_holders=True,
            may_claim=bool(self._claimable()),
        )

    def _decide(self) -> schedule.Decision:
        if self.scheduling is None:
            return None
        may_begin = len(self.trials) < self.num_trials
        return self.scheduling.decide(list(self.trials.values()), self._request(), may_begin)

    def _claimable(self) -> list[TrialRecord]:
        adrift = [
            each for each in self._records if each.status is Status.ACTIVE and not each.holder
        ]
        return adrift + [each for each in self._records if each.status is Status.REQUESTED]

    def _claim(self) -> int:
        claimed = transitions.claim(self._claimable()[0], _WORKER, self._time)
        return self._show(claimed).id

    def _paused(self, id_: int) -> Trial:
        trial = self.trials.get(id_)
        if trial is None or trial.status is not Status.PAUSED:
            raise ValueError(f'the scheduler goes on with trial {id_}, which is not paused')
        return trial

    def _fork(self, fork: Fork) -> None:
        # The parent may have gone on since, or have ended, but it was paused there.
        parent = self.trials.get(fork.trial)
        if parent is None or fork.step not in parent.record.pauses:
            raise ValueError(f'the scheduler forks trial {fork.trial} where it was not paused')
        self._paused(fork.replaces)
        try:
            row = self.answers.take(fork.decisions, after=fork.step)
        except LookupError:
            raise UserError(
                'the table has not enough rows for the trials that the scheduler forks'
            ) from None
        lineage = Lineage(
            origin=SCHEDULER,
            parent=fork.trial,
            forked_from=(fork.trial, fork.step),
            replaces=fork.replaces,
        )
        child = self._add(row, fork.decisions, TrialRecord(fork.decisions, lineage=lineage))
        self._stop(fork.replaces, f'replaced by trial {child}')

    def _suggest(self) -> bool:
        """Adds a suggested trial. Returns False where nothing is left to try."""
        try:
            suggestion = self.algorithm.suggest(self._request())
        except Exhausted:
            self.is_exhausted = True
            return False
        row = self.answers.take(suggestion.decisions)
        record = TrialRecord(suggestion.decisions, memo=suggestion.algorithm_state)
        self._add(row, suggestion.decisions, record)
        return True

    def _add(self, row: int, decisions: Decisions, record: TrialRecord) -> int:
        id_, recorded = len(self.trials) + 1, self.table.rows[row]
        used, clock = recorded.resources[self.unit], recorded.resources[self.table.unit]
        end = used[-1] if recorded.end is not None else self.most
        max_resource = None if self.unit == 'seconds' else end
        training = _Training(row, recorded, clock, used, decisions, max_resource)
        if record.lineage.forked_from is not None:
            begun = self._take_over(training, *record.lineage.forked_from)
            record = dataclasses.replace(record, measurements=(begun,))
        self.training[id_] = training
        self._show(dataclasses.replace(record, id=id_))
        return id_

    def _take_over(self, training: _Training, parent: int, step: int) -> Measurement:
        """Begins a training where another one was at a step. Returns the measurement there."""
        measured = next(each for each in self.trials[parent].measurements if each.step == step)
        training.past = sum(each <= step for each in training.recorded.resources['steps'])
        if self.unit != 'steps':
            there = measured.metrics[METRICS[self.unit]]
            before = training.used[training.past - 1] if training.past else 0.0
            training.used = [there + each - before for each in training.used]
            training.max_resource = None if self.unit == 'seconds' else training.used[-1]
        return measured

    def _end_paused(self) -> None:
        for trial in list(self.trials.values()):
            if trial.status is Status.PAUSED:
                self._stop(trial.id, f'not promoted from step {trial.record.paused_at}')

    def _request(self) -> SuggestionContext:
        return SuggestionContext(self.table.spec, self.seed, len(self.trials) + 1, self._history)

    def _history(self) -> list[Observation]:
        trials = list(self.trials.values())
        found = list(map(observe, trials))
        if self.algorithm.uses_predicted_ends:
            found = with_predicted_ends(trials, found, self.table.spec)
        return found


def _decisions(parameters: object) -> Decisions:
    # A simulated study stores decisions as they are.
    assert isinstance(parameters, dict)
    return parameters
