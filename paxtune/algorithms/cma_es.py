"""CMA-ES, with the update rules of the library `cmaes`."""

import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.encoding.scaling import to_unit
from paxtune.algorithms.encoding.unit_cube import Feature, FlatSpace
from paxtune.search_space.decisions import Decisions, is_integer
from trainer.symbolic.component import require_above_zero, require_at_least
from trainer.symbolic.errors import UserError

_MAX_TRIES = 100
_MAX_VARIABLES = 300
_MAX_DOUBLINGS = 5
_MAX_INTEGERS = 64  # A range of more integers is continuous for the optimizer.
_NARROW = 1e-6  # Standard deviation, relative to the range, below which trials are equal.

_Generation: TypeAlias = tuple[int, int]
"""Index of a run, and of a generation in it."""

_Evaluations: TypeAlias = list[tuple[str, float | None]]
"""The points of a generation, with their scores; None for an infeasible trial."""


class CMAES(Algorithm):
    """A normal distribution over the space moves, stretches and shrinks towards the better trials.

    Trials are drawn in generations. The distribution adapts as soon as as many trials have ended
    as the population holds; other trials of a generation are ignored. Infeasible trials rank last.
    A converged distribution, or one whose draws were all tried, is restarted elsewhere with twice
    the population. The first run starts at the best known trial (of earlier studies, or added by
    users), or in the middle.

    Numbers are searched on their scale. Integers and choices between numbers keep a minimum
    probability to change; other choices have probabilities of their own (CatCMA with margin).
    Inactive decisions are drawn, and omitted from the trial.

    N. Hansen, A. Ostermeier, "Completely derandomized self-adaptation in evolution strategies",
    Evolutionary Computation 9(2), 2001. A. Auger, N. Hansen, "A restart CMA evolution strategy with
    increasing population size", CEC 2005. R. Hamano et al., "CatCMA with margin: stochastic
    optimization for continuous, integer, and categorical variables", GECCO 2025.

    Attributes:
        population_size: number of trials in a generation of the first run; None for
            4 + ⌊3 ln n⌋ with n decisions.
        step: initial standard deviation, relative to each range; half of it at a known trial.
    """

    population_size: int | None = None
    step: float = 0.2

    def check(self) -> None:
        require_at_least(self, 4, 'population_size')
        require_above_zero(self, 'step')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, exactly_one=True)
        count = len(_columns(spec))
        if count > _MAX_VARIABLES:
            raise UserError(
                f'CMAES models the covariance of at most {_MAX_VARIABLES} decisions; there are '
                f'{count}. Use RegularizedEvolution, NSGA2 or HillClimbing.'
            )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        rng, columns = context.rng(), _columns(context.spec)
        history = _History(context, self)
        for begin in (history.current, history.restart) if len(columns) else ():
            optimizer, state = begin()
            for _ in range(_MAX_TRIES):
                row, point = columns.draw(optimizer, rng.getrandbits(32))
                decisions = columns.space.decode(row)
                if context.is_eligible(decisions):
                    return Suggestion(decisions, algorithm_state={**state, 'point': point})
        return Suggestion(draw_eligible(context, rng))


class _History:
    """Runs so far, from the observations.

    The algorithm state of a trial holds its `cma_generation` ('run.generation'), its `point`, and
    `observed`: the trials of the last update of the distribution. In a first generation it is the
    trial at the start of the run. Trials that end late therefore do not change earlier updates.
    """

    def __init__(self, context: SuggestionContext, algorithm: CMAES) -> None:
        self._context, self._algorithm = context, algorithm
        self._by_id = {trial.id: trial for trial in context.observations}
        self._members: dict[_Generation, list[Observation]] = {}
        for trial in context.observations:
            if trial.id > 0 and 'cma_generation' in trial.algorithm_state:
                self._members.setdefault(_generation(trial), []).append(trial)
        self._run, self._last = max(self._members, default=(0, 0))

    def current(self) -> tuple[Any, Mapping[str, str]]:
        """Optimizer that draws the next trial, and the algorithm state of the trial."""
        if not self._members:
            completed = [trial for trial in self._context.observations if trial.scores]
            best = max(completed, key=lambda trial: trial.scores, default=None)
            start = [] if best is None else [best.id]
            return self._optimizer(0, start, []), _state(0, 0, start)
        generations = [(self._run, number) for number in range(self._last + 1)]
        if not all(generation in self._members for generation in generations):
            return self.restart()  # Trials are missing.
        states = [self._members[generation][0].algorithm_state for generation in generations]
        sources = [[int(each) for each in state['observed'].split()] for state in states]
        ended = [t for t in self._members[generations[-1]] if t.state != 'pending']
        size = self._population_size(self._run)
        adapts = len(ended) >= size and any(trial.scores for trial in ended)
        if adapts:
            ended.sort(key=lambda trial: (not trial.scores, trial.id))
            sources.append(sorted(trial.id for trial in ended[:size]))
        if not all(id_ in self._by_id for ids in sources for id_ in ids):
            return self.restart()
        evaluations = [self._evaluations(ids) for ids in sources[1:]]
        optimizer = self._optimizer(self._run, sources[0], evaluations)
        if adapts and _has_converged(self._context.spec, optimizer, evaluations[-1]):
            return self.restart()
        return optimizer, _state(self._run, self._last + adapts, sources[-1])

    def restart(self) -> tuple[Any, Mapping[str, str]]:
        """Optimizer at a random place."""
        return self._optimizer(self._run + 1, [], []), _state(self._run + 1, 0, [])

    def _evaluations(self, trial_ids: Sequence[int]) -> _Evaluations:
        trials = map(self._by_id.__getitem__, trial_ids)
        return [(t.algorithm_state['point'], t.scores[0] if t.scores else None) for t in trials]

    def _optimizer(self, run: int, start: Sequence[int], generations: list[_Evaluations]) -> Any:
        """Makes the optimizer of a run, and adapts it to all evaluated generations."""
        columns = _columns(self._context.spec)
        made = columns.optimizer(
            self._population_size(run),
            self._algorithm.step / (2 if start else 1),
            self._by_id[start[0]].decisions if start else {},
            f'{self._context.seed}/{run}' if run else None,
        )
        for generation in generations:
            # By rank, the best first and infeasible ones last. The update depends on ranks alone.
            # With equal scores the library would divide by zero.
            order = sorted(generation, key=lambda each: -math.inf if each[1] is None else each[1])
            ranks = enumerate(reversed(order))
            with np.errstate(all='ignore'):
                made.tell([(columns.solution(point), float(rank)) for rank, (point, _) in ranks])
        return made

    def _population_size(self, run: int) -> int:
        default = 4 + math.floor(3 * math.log(len(_columns(self._context.spec))))
        first = self._algorithm.population_size or default
        return int(first * 2 ** min(run, _MAX_DOUBLINGS))


def _state(run: int, number: int, trial_ids: Sequence[int]) -> dict[str, str]:
    return {'cma_generation': f'{run}.{number}', 'observed': ' '.join(map(str, trial_ids))}


def _generation(trial: Observation) -> _Generation:
    run, number = trial.algorithm_state['cma_generation'].split('.')
    return int(run), int(number)


def _has_converged(spec: pg.DNASpec, optimizer: Any, last: _Evaluations) -> bool:
    """True if further draws are not expected to improve."""
    if len({score for _, score in last}) == 1:
        return True  # A plateau.
    normal = np.array([json.loads(point)[0] for point, _ in last])
    if not normal.size:
        return False
    with np.errstate(all='ignore'):
        return bool(
            (normal.std(axis=0) < _NARROW).all()
            or not np.isfinite(_columns(spec).draw(optimizer, 0)[0]).all()
            or optimizer.should_stop()
        )


class _Columns:
    """Columns of a row that can vary, by how they are searched."""

    def __init__(self, spec: pg.DNASpec) -> None:
        self.space = FlatSpace(spec)
        # Columns of continuous ranges; of integers and of choices between numbers, with the unit
        # values of each; of other choices and of binary ones, with the number of candidates.
        self._numbers: list[int] = []
        self._ordinals: dict[int, list[float]] = {}
        self._categories: dict[int, int] = {}
        for column, feature in enumerate(self.space.features):
            units = _unit_values(feature, self.space.ranges.get(feature.id))
            if units is None:
                self._numbers.append(column)
            elif len(units) > 2 and feature.kind != 'category':
                self._ordinals[column] = units
            elif len(units) > 1:
                self._categories[column] = len(units)
        self._normal = [*self._numbers, *self._ordinals]

    def __len__(self) -> int:
        return len(self._normal) + len(self._categories)

    def optimizer(
        self, population_size: int, step: float, decisions: Decisions, seed: str | None
    ) -> Any:
        """Makes the optimizer of the first generation of a run.

        Args:
            population_size: number of trials in a generation.
            step: standard deviation, relative to each range.
            decisions: the mean; empty for a point that `seed` draws, or for the middle.
            seed: None for the middle.
        """
        # Imported here: the import takes a second.
        from cmaes import CatCMAwM

        count, rng = len(self._normal), random.Random(seed)
        row = np.array([0.5 if seed is None else rng.random() for _ in range(len(self.space))])
        if decisions:
            row = np.nan_to_num(self.space.encode(decisions), nan=0.5)
        return CatCMAwM(
            x_space=[[0.0, 1.0]] * len(self._numbers) or None,
            z_space=list(self._ordinals.values()) or None,
            c_space=list(self._categories.values()) or None,
            population_size=population_size,
            mean=row[self._normal] if count else None,
            sigma=step,
            cov=np.eye(count) if count else None,
            cat_param=self._probabilities(row) if decisions and self._categories else None,
        )

    def _probabilities(self, row: np.ndarray) -> np.ndarray:
        """Half of each choice is uniform, the other half is on the candidate of the mean."""
        found = np.zeros((len(self._categories), max(self._categories.values())))
        for each, (column, count) in zip(found, self._categories.items(), strict=True):
            each[:count] = 0.5 / count
            each[min(int(row[column] * count), count - 1)] += 0.5
        return found

    def draw(self, optimizer: Any, seed: int) -> tuple[np.ndarray, str]:
        """Draws a row, and the point that it stands for in `solution`."""
        optimizer.reseed_rng(seed)
        with np.errstate(all='ignore'):
            solution = optimizer.ask()
        row = np.full(len(self.space), 0.5)
        chosen: list[int] = []
        if self._numbers:
            row[self._numbers] = solution.x
        if self._ordinals:
            row[list(self._ordinals)] = solution.z
        if self._categories:
            chosen = [int(index) for index in solution.c.argmax(axis=1)]
            ends = zip(chosen, self._categories.values(), strict=True)
            row[list(self._categories)] = [(index + 0.5) / count for index, count in ends]
        # The last field has the numbers as they were drawn, before they are rounded.
        *_, normal = dataclasses.astuple(solution)
        return row, json.dumps([[] if normal is None else normal.tolist(), chosen])

    def solution(self, point: str) -> Any:
        """Makes the solution that was drawn as a point."""
        from cmaes import CatCMAwM

        normal, chosen = json.loads(point)
        one_hot = None
        if self._categories:
            one_hot = np.zeros((len(chosen), max(self._categories.values())), bool)
            one_hot[np.arange(len(chosen)), chosen] = True
        return CatCMAwM.Solution(None, None, one_hot, np.array(normal) if self._normal else None)


_columns = per_spec(_Columns)


def _unit_values(feature: Feature, point: pg.geno.Float | None) -> list[float] | None:
    """Unit values of a column; None if there are many."""
    if point is None:
        return [(rank + 0.5) / len(feature.order) for rank in range(len(feature.order))]
    if point.min_value == point.max_value:
        return [0.5]
    low, high = int(point.min_value), int(point.max_value)
    if not is_integer(point) or high - low >= _MAX_INTEGERS:
        return None
    return [to_unit(point, number) for number in range(low, high + 1)]
