"""Studies on a table of recorded curves: simulated workers, a simulated clock, no training."""

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, overload

from paxtune.algorithms.base import Algorithm, Exhausted, Observation, Suggestion, SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.schedulers.base import Fork, Pause, Promote, Scheduler, Stop, TrialCurve, Unit, Wait
from paxtune.simulation.result import Progress, Run, SimulatedTrial
from paxtune.simulation.table import CurveTable
from trainer.symbolic.errors import UserError

_State: TypeAlias = Literal['waiting', 'running', 'paused', 'completed', 'stopped', 'infeasible']


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

    With one worker it makes the decisions that a study makes in the same place. Who has nothing to
    do asks the scheduler: a promoted trial goes on at once, a forked one waits. Where there is
    nothing to promote, the first trial is taken that waits; then one is suggested, unless
    the scheduler says to wait. Somebody who has to wait asks again whenever something was measured.

    Training takes as long as it took, or a unit of time for each step where the table has no
    seconds. Compilation, evaluation and saving take no time.

    A promoted trial goes on where it was. The decisions in a table are constant: a forked trial has
    its parent's measurement at the step of the fork, and from there on the curve of the row that is
    next to its own decisions, as if that had been its past, too.

    Args:
        table: the recorded curves.
        scheduler: what decides how far trials are trained; None trains all to their ends.
        algorithm: what proposes trials.
        num_trials: how many trials there are, all in all, forked ones included.
        workers: how many trials run at once.
        seed: what the algorithm draws from.
        target: the reward at whose first completion the run ends; None runs all trials.

    Raises:
        UserError: the scheduler counts in a unit that the table does not have, or the table has not
            that many rows.
    """
    require_rows(table, scheduler, num_trials)
    study = _Study(table, scheduler, algorithm.resolved(table.spec, 1), num_trials, seed, target)
    return study.run(workers)


def require_rows(table: CurveTable, scheduler: Scheduler | None, num_trials: int) -> None:
    """Makes sure that a table has what a scheduler goes by, and so many trials.

    Raises:
        UserError: it has not.
    """
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


class _Trial:
    """A trial of a simulated study.

    Attributes:
        past: how many evaluations of its row have passed, those before a fork included.
        began: when it began last, to run or to go on.
        began_at: how many evaluations had passed then.
        cost: what it has cost until it ran no more last.
    """

    def __init__(
        self, study: '_Study', id_: int, row: int, suggestion: Suggestion, fork: Fork | None = None
    ) -> None:
        self.id, self.row, self.suggestion, self.fork = id_, row, suggestion, fork
        recorded, unit = study.table.rows[row], study.unit
        self.recorded = recorded
        self.clock = recorded.resources[study.table.unit]
        self.all_resources = recorded.resources[unit]
        self.measurements: list[Measurement] = []
        self.resources: list[float] = []
        self.pauses: list[int] = []
        self.past = self.began_at = 0
        self.began = self.cost = 0.0
        self.reason: str | None = None
        self.max_resource: float | None = None
        if unit != 'seconds':
            self.max_resource = self.all_resources[-1] if recorded.end is not None else study.most
        if fork is not None:
            self._take_over(study.trials[fork.trial], fork.step, unit)
        self.state: _State = 'waiting'
        self.curve = self._curve()

    def _take_over(self, parent: '_Trial', step: int, unit: Unit) -> None:
        """Begins where another one was after a step."""
        at = next(i for i, each in enumerate(parent.measurements) if each.step == step)
        self.measurements.append(parent.measurements[at])
        self.resources.append(parent.resources[at])
        self.past = sum(each <= step for each in self.recorded.resources['steps'])
        if unit != 'steps':
            before = self.all_resources[self.past - 1] if self.past else 0.0
            self.all_resources = [
                parent.resources[at] + each - before for each in self.all_resources
            ]
            self.max_resource = None if unit == 'seconds' else self.all_resources[-1]

    def _curve(self) -> TrialCurve:
        fork = self.fork
        assert self.state != 'infeasible'
        return TrialCurve(
            self.id,
            self.state,
            self.measurements,
            self.resources,
            self.max_resource,
            self.pauses,
            self.suggestion.decisions,
            None if fork is None else (fork.trial, fork.step),
            None if fork is None else fork.replaces,
        )

    def to(self, state: _State, reason: str | None = None) -> None:
        """Changes its state. What it was measured at is not copied: curves grow."""
        self.state = state
        self.reason = reason or self.reason
        if state != 'infeasible':
            self.curve = self._curve()

    def at(self, past: int) -> float:
        """When the evaluations of the row had passed, counted from its first step."""
        return self.clock[past - 1] if past else 0.0

    @property
    def reward(self) -> float | None:
        """What it ends with: of a stopped one, its last reward."""
        if self.state == 'completed':
            return self.recorded.end
        return None if self.state == 'infeasible' else self.reward_of(len(self.measurements))

    def reward_of(self, count: int) -> float | None:
        """The last reward among its first measurements."""
        return next(
            (each.reward for each in self.measurements[:count][::-1] if each.reward is not None),
            None,
        )

    @property
    def has_ended(self) -> bool:
        return self.state in ('completed', 'stopped', 'infeasible')


class _Others(Sequence[TrialCurve]):
    """All curves but one, without a copy: decisions are many."""

    def __init__(self, curves: Mapping[int, TrialCurve], own: int) -> None:
        self._curves, self._own = curves, own

    def __iter__(self) -> Iterator[TrialCurve]:
        return (curve for id_, curve in self._curves.items() if id_ != self._own)

    def __len__(self) -> int:
        return len(self._curves) - (self._own in self._curves)

    @overload
    def __getitem__(self, index: int) -> TrialCurve: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrialCurve]: ...
    def __getitem__(self, index: int | slice) -> TrialCurve | list[TrialCurve]:
        return list(self)[index]


class _Study:
    """The state of a simulated study."""

    def __init__(
        self,
        table: CurveTable,
        scheduler: Scheduler | None,
        algorithm: Algorithm,
        num_trials: int,
        seed: int,
        target: float | None,
    ) -> None:
        self.table, self.scheduler, self.algorithm = table, scheduler, algorithm
        self.num_trials, self.seed, self.target = num_trials, seed, target
        self.unit: Unit = 'steps' if scheduler is None else scheduler.unit
        self.most = max(row.resources[self.unit][-1] for row in table.rows if row.end is not None)
        self.trials: dict[int, _Trial] = {}
        self.curves: dict[
            int, TrialCurve
        ] = {}  # By id, and in their order, without infeasible ones.
        self.answers = table.start()
        self.is_exhausted = self.is_over = False
        self.now = 0.0
        self.progress: list[Progress] = []
        self._best: float | None = None
        # What trials have cost that run no more; of those that run, their number and beginnings.
        self._paid = self._beginnings = 0.0
        self._num_running = 0
        self._events: list[tuple[float, int, _Trial]] = []
        self._order = itertools.count()
        self._open: dict[int, int | None] = {}
        self._newest = 0

    def run(self, workers: int) -> Run:
        """Runs until nothing runs and nothing can begin."""
        self._begin_all(workers)
        while self._events and not self.is_over:
            self.now, _, trial = heapq.heappop(self._events)
            if self._evaluated(trial):
                self._schedule(trial)
            if self._num_running < workers and not self.is_over:
                self._begin_all(workers)
        for trial in self.trials.values():
            if trial.state == 'paused' and not self.is_over:
                trial.to('stopped', f'not promoted from step {trial.pauses[-1]}')
        return self._result()

    def _result(self) -> Run:
        trials = [
            SimulatedTrial(
                each.id,
                each.row,
                each.suggestion.decisions,
                each.state,
                each.reward,
                each.cost + (self.now - each.began if each.state == 'running' else 0.0),
                tuple(each.pauses),
                None if each.fork is None else (each.fork.trial, each.fork.step),
                None if each.fork is None else each.fork.replaces,
                each.reason,
                tuple(each.measurements),
            )
            for each in self.trials.values()
        ]
        return Run(self.table, trials, self.progress, self._compute, self.now)

    @property
    def _compute(self) -> float:
        return self._paid + self._num_running * self.now - self._beginnings

    # --- What runs ---

    def _begin_all(self, workers: int) -> None:
        while self._num_running < workers:
            trial = self._next()
            if trial is None:
                return
            self._begin(trial)

    def _begin(self, trial: _Trial) -> None:
        if trial.id > self._newest:
            self._newest = trial.id
            self._open = {
                each.id: len(each.measurements) if each.state == 'paused' else None
                for each in self.trials.values()
                if not each.has_ended and each.id < trial.id
            } | {trial.id: None}
        trial.began, trial.began_at = self.now, trial.past
        self._beginnings += self.now
        self._num_running += 1
        self._to(trial, 'running')
        # A run that begins at an evaluation repeats it, and is decided on again.
        if not trial.measurements or self._goes_on(trial):
            self._schedule(trial)

    def _schedule(self, trial: _Trial) -> None:
        # Without a scheduler only ends are events.
        past = trial.past + 1 if self.scheduler is not None else len(trial.clock)
        then = trial.began + trial.at(past) - trial.at(trial.began_at)
        heapq.heappush(self._events, (then, next(self._order), trial))

    def _evaluated(self, trial: _Trial) -> bool:
        """What follows from the next evaluation of a trial. Returns whether the trial goes on."""
        row, end = trial.recorded, len(trial.clock)
        past = trial.past + 1 if self.scheduler is not None else end
        new = row.measurements[trial.past : past]
        trial.measurements += new
        trial.resources += trial.all_resources[trial.past : trial.past + len(new)]
        trial.past = past
        if past < end:
            return self._goes_on(trial)
        self._release(trial, 'infeasible' if row.end is None else 'completed')
        if row.end is not None:
            self._completed(row.end)
        return False

    def _goes_on(self, trial: _Trial) -> bool:
        """Judges a trial at its last measurement."""
        if self.scheduler is None:
            return True
        others = _Others(self.curves, trial.id)
        decision = self.scheduler.decide(trial.curve, others, self.table.reward)
        if decision is None:
            return True
        if isinstance(decision, Pause):
            step = trial.measurements[-1].step
            if step not in trial.pauses:
                trial.pauses.append(step)
        ends = isinstance(decision, Stop)
        self._release(trial, 'stopped' if ends else 'paused', decision.reason)
        return False

    def _release(self, trial: _Trial, state: _State, reason: str | None = None) -> None:
        """A trial runs no more."""
        took = self.now - trial.began
        trial.cost += took
        self._paid += took
        self._beginnings -= trial.began
        self._num_running -= 1
        self._to(trial, state, reason)

    def _to(self, trial: _Trial, state: _State, reason: str | None = None) -> None:
        trial.to(state, reason)
        if state == 'infeasible':
            del self.curves[trial.id]
        else:
            self.curves[trial.id] = trial.curve

    def _completed(self, reward: float) -> None:
        score = self.table.reward.score
        if self._best is None or score(reward) > score(self._best):
            self._best = reward
            self.progress.append(Progress(self.now, self._compute, reward))
        if self.target is not None and score(reward) >= score(self.target):
            self.is_over = True

    # --- What begins ---

    def _next(self) -> _Trial | None:
        """What somebody who has nothing to do is to do next."""
        action = self._ask_scheduler()
        if isinstance(action, Promote):
            promoted = self._paused(action.trial)
            promoted.reason = action.reason
            return promoted
        waiting = (each for each in self.trials.values() if each.state == 'waiting')
        if (first := next(waiting, None)) is not None:
            return first
        return None if isinstance(action, Wait) or not self._has_room else self._suggested()

    @property
    def _has_room(self) -> bool:
        return (
            len(self.trials) < self.num_trials and self.answers.left > 0 and not self.is_exhausted
        )

    def _ask_scheduler(self) -> Promote | Wait | None:
        """What the scheduler wants, once it has made its forks."""
        scheduler = self.scheduler
        if scheduler is None or not scheduler.pauses:
            return None
        while True:
            curves, may_begin = list(self.curves.values()), len(self.trials) < self.num_trials
            action = scheduler.next_action(curves, self.table.reward, self._request(), may_begin)
            if not isinstance(action, Fork):
                return action
            self._fork(action)

    def _paused(self, id_: int) -> _Trial:
        trial = self.trials.get(id_)
        if trial is None or trial.state != 'paused':
            raise ValueError(f'{self.scheduler!r} goes on with trial {id_}, which is not paused')
        return trial

    def _fork(self, fork: Fork) -> None:
        # The parent may have gone on since, or have ended, but it was paused there.
        parent = self.trials.get(fork.trial)
        if parent is None or fork.step not in parent.pauses:
            raise ValueError(f'{self.scheduler!r} forks trial {fork.trial} where it was not paused')
        replaced = self._paused(fork.replaces)
        try:
            row = self.answers.take(fork.decisions, after=fork.step)
        except LookupError:
            raise UserError(
                'the table has not enough rows for the trials that the scheduler forks'
            ) from None
        child = self._add(row, Suggestion(fork.decisions), fork)
        self._to(replaced, 'stopped', f'replaced by trial {child.id}')

    def _suggested(self) -> _Trial | None:
        try:
            suggestion = self.algorithm.suggest(self._request())
        except Exhausted:
            self.is_exhausted = True
            return None
        return self._add(self.answers.take(suggestion.decisions), suggestion)

    def _add(self, row: int, suggestion: Suggestion, fork: Fork | None = None) -> _Trial:
        trial = _Trial(self, len(self.trials) + 1, row, suggestion, fork)
        self.trials[trial.id] = trial
        self.curves[trial.id] = trial.curve
        return trial

    def _request(self) -> SuggestionContext:
        return SuggestionContext(self.table.spec, self.seed, len(self.trials) + 1, self._history)

    def _history(self) -> list[Observation]:
        return [self._past(each) for each in self.trials.values()]

    def _past(self, trial: _Trial) -> Observation:
        made = (trial.id, trial.suggestion.decisions)
        memo = trial.suggestion.algorithm_state
        reward: float | None = None
        if self.algorithm.prefetches and trial.id in self._open:
            # Suggestions are made of what was known when the newest trial began.
            count = self._open[trial.id]
            reward = None if count is None else trial.reward_of(count)
        elif trial.state == 'infeasible':
            return Observation(*made, 'infeasible', algorithm_state=memo)
        elif trial.state in ('completed', 'stopped', 'paused'):
            reward = trial.reward
        if reward is None:
            return Observation(*made, 'pending', algorithm_state=memo)
        return Observation(*made, 'completed', (self.table.reward.score(reward),), memo)
