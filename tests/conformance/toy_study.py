"""Studies in memory, with workers that take turns and may die, for tests of schedulers."""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import pyglove as pg

from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.encoding.points import points_function
from paxtune.algorithms.encoding.sampling import draw
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import Reward
from paxtune.schedulers import Fork, Pause, Promote, Scheduler, Stop, TrialCurve, Wait
from paxtune.schedulers.base import State
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.ranges import intv
from trainer.symbolic.serialization import from_json_text, to_json_text

END = 100
PER_STEP = {'steps': 1.0, 'tokens': 8.0, 'flops': 1e6, 'seconds': 0.5}
SPEC = pg.dna_spec(
    pg.Dict(x=pg.floatv(-1.0, 1.0), width=intv(1, 9), kind=pg.oneof(['a', 'b', 'c']))
)

Value = Callable[[Decisions, int], float]


def steady(decisions: Decisions, step: int) -> float:
    """A curve that improves; the higher its level, the better."""
    return decisions['x'] + step / END


def crossing(decisions: Decisions, step: int) -> float:
    """A curve that is the better early, the worse it is late."""
    return decisions['x'] * (1 - 2 * step / END) + step / END


class Died(Exception):
    """A worker's process was killed."""


@dataclasses.dataclass
class Toy:
    """A trial. It can go on from any multiple of 10 steps since `origin`."""

    id: int
    decisions: Decisions
    state: State | Literal['infeasible'] = 'waiting'
    step: int = 0
    origin: int = 0
    is_measured_again: bool = False
    measured: dict[int, Measurement] = dataclasses.field(default_factory=dict)
    pauses: list[int] = dataclasses.field(default_factory=list)
    forked_from: tuple[int, int] | None = None
    replaces: int | None = None
    num_ends: int = 0

    @functools.cached_property
    def point(self) -> list[float]:
        """The decisions as numbers from 0 to 1."""
        point: list[float] = points_function(SPEC)([self.decisions])[0].tolist()
        return point

    def end(self, state: State | Literal['infeasible']) -> None:
        self.state = state
        self.num_ends += 1


class ToyStudy:
    """Runs a scheduler to the end of a study, and checks each of its answers."""

    def __init__(
        self,
        scheduler: Scheduler,
        reward: Reward,
        workers: int = 1,
        num_trials: int = 20,
        value: Value = steady,
        stride: int = 10,
        infeasible: Collection[int] = (),
        kills: random.Random | None = None,
    ) -> None:
        """Makes a study.

        Args:
            scheduler: what is tested.
            reward: its reward.
            workers: how many take turns.
            num_trials: how many trials there may be.
            value: the curves.
            stride: steps between measurements; between two multiples of 10 there is no reward.
            infeasible: the trials that turn out to be that, some before the first step.
            kills: says when a worker dies; None for never.
        """
        self.scheduler, self.reward, self.value = scheduler, reward, value
        self.again = from_json_text(to_json_text(scheduler), Scheduler, source='text')
        self.trials: dict[int, Toy] = {}
        self.workers, self.num_trials, self.stride = workers, num_trials, stride
        self.infeasible, self.kills = infeasible, kills
        self.forks: list[Fork] = []
        self._per_step = PER_STEP[scheduler.unit]
        self._max_resource = None if scheduler.unit == 'seconds' else END * self._per_step
        self._held: dict[int, Toy] = {}
        self._shuffle = random.Random(0)

    def run(self) -> 'ToyStudy':
        for _ in range(20_000):
            turns = [self._turn(worker) for worker in range(self.workers)]
            if not any(turns):
                break
        else:
            raise AssertionError('it does not end')
        self._tidy()
        for trial in self.trials.values():
            assert trial.state not in ('waiting', 'running')
            if trial.state == 'paused':
                trial.end('stopped')
        return self

    def curves(self) -> list[TrialCurve]:
        """All trials except infeasible ones."""
        trials = [each for each in self.trials.values() if each.state != 'infeasible']
        return [self._curve(each) for each in trials]

    def _curve(self, trial: Toy, until: float = math.inf) -> TrialCurve:
        assert trial.state != 'infeasible'
        measured = [each for step, each in sorted(trial.measured.items()) if step <= until]
        return TrialCurve(
            trial.id,
            trial.state,
            measured,
            [self._per_step * each.step for each in measured],
            self._max_resource,
            pauses=list(trial.pauses),
            decisions=dict(trial.decisions),
            forked_from=trial.forked_from,
            replaces=trial.replaces,
            point=trial.point,
        )

    def _turn(self, worker: int) -> bool:
        """Runs one step of a worker; returns False if it had nothing to do."""
        try:
            trial = self._held.get(worker) or self._claimed()
            if trial is None:
                return False
            self._held[worker] = trial
            self._train(trial)
        except Died:
            if trial := self._held.get(worker):
                assert self.kills is not None
                stops = range(trial.origin, min(trial.step, END - 10) + 1, 10)
                trial.step = self.kills.choice(stops)
                # It is measured again, or goes on from what is known.
                trial.is_measured_again = trial.step > 0
            return True
        if trial.state != 'running':
            del self._held[worker]
        return True

    def _claimed(self) -> Toy | None:
        for _ in range(200):
            self._tidy(sometimes=True)
            answer = self._next()
            self._may_die()
            if isinstance(answer, Promote):
                self._promote(answer)
            elif isinstance(answer, Fork):
                self._fork(answer)
            elif isinstance(answer, Wait):
                assert not any(each.state == 'waiting' for each in self.trials.values())
                return None
            else:
                return self._begun()
        raise AssertionError('it always finds something to do first')

    def _begun(self) -> Toy | None:
        waiting = [each for each in self.trials.values() if each.state == 'waiting']
        trial = min(waiting, key=lambda each: each.id, default=None)
        if trial is None:
            if len(self.trials) == self.num_trials:
                return None
            trial = self._added(draw(SPEC, self._request().rng()))
        trial.state = 'running'
        if trial.id in self.infeasible and trial.id % 2:
            trial.end('infeasible')
            return self._begun()
        return trial

    def _added(self, decisions: Decisions, **fields: Any) -> Toy:
        number = len(self.trials) + 1
        self.trials[number] = trial = Toy(number, decisions, **fields)
        return trial

    def _request(self) -> SuggestionContext:
        return SuggestionContext(SPEC, 0, len(self.trials) + 1, list, refusal)

    def _next(self) -> Promote | Fork | Wait | None:
        curves, may_begin = self.curves(), len(self.trials) < self.num_trials
        answer = self.scheduler.next_action(curves, self.reward, self._request(), may_begin)
        self._shuffle.shuffle(curves)
        assert self.again.next_action(curves, self.reward, self._request(), may_begin) == answer
        assert may_begin or not isinstance(answer, Fork)
        return answer

    def _promote(self, answer: Promote) -> None:
        trial = self.trials[answer.trial]
        assert trial.state == 'paused'
        assert trial.id not in self._replaced()
        assert answer.reason
        trial.state, trial.is_measured_again = 'waiting', True

    def _fork(self, answer: Fork) -> None:
        parent, child = self.trials[answer.trial], self.trials[answer.replaces]
        assert parent.state == child.state == 'paused'
        assert parent.pauses[-1] == answer.step
        assert parent is not child
        assert not {parent.id, child.id} & self._replaced()
        assert answer.reason
        assert refusal(answer.decisions) is None
        assert answer.decisions['kind'] == parent.decisions['kind']
        assert -1.0 <= answer.decisions['x'] <= 1.0
        assert 1 <= answer.decisions['width'] <= 9
        assert isinstance(answer.decisions['width'], int)
        self.forks.append(answer)
        self._added(
            answer.decisions,
            step=answer.step,
            origin=answer.step,
            is_measured_again=bool(len(self.trials) % 2),
            forked_from=(answer.trial, answer.step),
            replaces=answer.replaces,
        )
        self._may_die()
        child.end('stopped')

    def _replaced(self) -> set[int | None]:
        return {each.replaces for each in self.trials.values()}

    def _tidy(self, sometimes: bool = False) -> None:
        """Stops those whose place was taken before a worker died."""
        if sometimes and self.kills and self.kills.random() < 0.5:
            return
        for number in self._replaced():
            if number is not None and self.trials[number].state == 'paused':
                self.trials[number].end('stopped')

    def _train(self, trial: Toy) -> None:
        if not trial.is_measured_again:
            trial.step += self.stride
        trial.is_measured_again = False
        if trial.id in self.infeasible and trial.step > 40:
            trial.end('infeasible')
            return
        trial.measured[trial.step] = self._measurement(trial)
        self._may_die()
        if trial.step >= END:
            trial.end('completed')
            return
        found = self._decision(trial)
        self._may_die()
        if isinstance(found, Stop):
            assert found.reason
            trial.end('stopped')
        elif isinstance(found, Pause):
            assert found.reason
            assert trial.step > max(trial.pauses, default=0)
            trial.state, trial.origin = 'paused', trial.step
            trial.pauses.append(trial.step)

    def _measurement(self, trial: Toy) -> Measurement:
        if trial.step % 10:
            return Measurement(trial.step, {'other': 1e9})
        value = self.value(trial.decisions, trial.step)
        metrics = {'loss': -value, 'accuracy': value}
        return Measurement(trial.step, metrics, (self.reward.score(value),))

    def _decision(self, trial: Toy) -> Stop | Pause | None:
        own = self._curve(trial, trial.step)
        others = [each for each in self.curves() if each.id != trial.id]
        found = self.scheduler.decide(own, others, self.reward)
        self._shuffle.shuffle(others)
        assert self.again.decide(own, others, self.reward) == found
        return found

    def _may_die(self) -> None:
        if self.kills and self.kills.random() < 0.1:
            raise Died


def refusal(decisions: Decisions) -> str | None:
    """The reason for which decisions are infeasible."""
    return 'x lies between 0.1 and 0.2' if 0.1 < decisions['x'] < 0.2 else None


def ran(scheduler: Scheduler, reward: Reward, **fields: Any) -> Sequence[Toy]:
    """The trials of a study that has come to its end."""
    return list(ToyStudy(scheduler, reward, **fields).run().trials.values())
