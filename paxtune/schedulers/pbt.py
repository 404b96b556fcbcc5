import math
import random
from collections.abc import Mapping

import pyglove as pg

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Fork, Pause, Promote, Scheduler, Score, TrialCurve, Wait
from paxtune.schedulers.perturbation import names_of, numbers, perturbed
from paxtune.schedulers.rungs import resource_at
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import require_at_least, require_share
from trainer.symbolic.errors import UserError, nearest

_MAX_TRIES = 10
_ENDED = ('completed', 'stopped')


class PopulationBasedTraining(Scheduler):
    """Population-based training (Jaderberg et al. 2017), in generations.

    All members are paused at every interval. When the last of them is paused, forks replace the
    worst members. The parent of each fork is one of the best, drawn at random. The fork has its
    state and choices, and perturbed numbers. Then all go on. So decisions change during training,
    and the result is a schedule. Members wait for each other, so the result is the same for any
    number of workers. The trials of the study beyond the first population are forks. Trials that
    are not replaced train to their ends, and the study ends with them. Once all members are
    infeasible, a new population begins.

    Attributes:
        population_size: the number of members.
        interval: the resource from one generation to the next, in `unit`.
        quantile: the share of the population that is replaced, and the share that is forked.
        perturbation: numbers are multiplied or divided by this, within their ranges; whole numbers
            change by at least one.
        resample_probability: the probability that a number is resampled instead, on its scale.
        decisions: the paths of the numbers that are perturbed; None for all. Weights must keep
            their shapes: name the numbers if others determine the size of the model.

    Example:
        >>> scheduler = PopulationBasedTraining(population_size=8, interval=100)
    """

    pauses = forks = True

    population_size: int
    interval: float
    quantile: float = 0.25
    perturbation: float = 1.2
    resample_probability: float = 0.25
    decisions: list[str] | None = None

    def check(self) -> None:
        super().check()
        require_at_least(self, 2, 'population_size')
        if not 0.0 < self.interval < math.inf:
            raise ValueError(f'interval must be greater than 0: {self.interval}')
        if not 0.0 < self.quantile <= 0.5:
            raise ValueError(f'quantile must lie above 0, and be at most 0.5: {self.quantile}')
        if not 1.0 < self.perturbation < math.inf:
            raise ValueError(f'perturbation must be greater than 1: {self.perturbation}')
        require_share(self, 'resample_probability')
        if self.decisions is not None and not self.decisions:
            raise ValueError('decisions must name a number to perturb; None stands for all')

    def onsets(self, max_resource: float) -> dict[str, float]:
        return {**super().onsets(max_resource), 'interval': self.interval}

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Pause | None:
        self._score(reward)
        last = curve.measurements[-1]
        # A promoted or forked trial is measured again up to where it was paused.
        if last.reward is None or last.step <= _origin(curve):
            return None
        reached = self._generation_at(curve, last.step)
        # Only a fork has a parent. A study may have thousands of others.
        known = {} if curve.forked_from is None else {each.id: each for each in others}
        if not reached or reached <= self._generation(curve, known):
            return None
        return Pause(f'reward {last.reward:.6g} at step {last.step}, in generation {reached}')

    def next_action(
        self, curves: Curves, reward: Reward | None, context: SuggestionContext, may_begin: bool
    ) -> Promote | Fork | Wait | None:
        score = self._score(reward)
        replaced = {curve.replaces for curve in curves}
        members = [each for each in curves if each.id not in replaced and not _is_put_out(each)]
        # A population whose members have all become infeasible begins anew.
        is_growing = len(members) < self.population_size and not any(map(_has_gone_on, members))
        if is_growing and may_begin:
            return None
        known = {curve.id: curve for curve in curves}
        living = [each for each in members if each.state not in _ENDED]
        generations = {curve.id: self._generation(curve, known) for curve in living}
        paused = [each for each in living if each.state == 'paused']
        now = min((generations[each.id] for each in paused), default=0)
        behind = [each for each in living if generations[each.id] < now]
        if paused and not behind:
            here = [each for each in paused if generations[each.id] == now]
            forks = sum(
                self._birth(each, known) == now for each in curves if each.forked_from is not None
            )
            may_fork = may_begin and not _is_end(here, curves)
            if may_fork and (fork := self._fork(living, here, forks, now, score, context)):
                return fork
            first = min(here, key=lambda each: each.id)
            return Promote(first.id, f'the population has reached generation {now}')
        if any(each.state == 'waiting' for each in living):
            return None
        if not living:
            count = context.number - 1
            return Wait(f'the population has trained to its end, in {count} trials of the budget')
        return Wait(f'the population is still on its way to generation {now or 1}')

    def _fork(
        self,
        living: Curves,
        here: Curves,
        num_forks: int,
        generation: int,
        score: Score,
        context: SuggestionContext,
    ) -> Fork | None:
        """The next fork of a generation after `num_forks` forks; None if there is none.

        The `living` members have neither ended nor been replaced. The members `here` are paused in
        this generation.
        """
        scores = {
            each.id: score(value)
            for each in living
            if (value := self._value(each, generation)) is not None
        }
        size = len(scores) + num_forks
        count = min(max(1, int(self.quantile * size)), size // 2)
        ranked = sorted(scores, key=lambda id_: (-scores[id_], id_))
        paused = {each.id: each for each in here}
        best = [paused[id_] for id_ in ranked[:count] if id_ in paused]
        worst = [id_ for id_ in ranked[len(ranked) - count + num_forks :] if id_ in paused]
        if num_forks >= count or not best or not worst:
            return None
        rng = context.rng()
        parent, child = rng.choice(best), worst[-1]
        reason = (
            f'trial {child} was number {ranked.index(child) + 1} of {size} in '
            f'generation {generation}, trial {parent.id} number {ranked.index(parent.id) + 1}'
        )
        decisions = self._perturbed(parent.decisions, context, rng)
        return Fork(parent.id, parent.pauses[-1], decisions, child, reason)

    def _perturbed(
        self, parent: Decisions, context: SuggestionContext, rng: random.Random
    ) -> Decisions:
        settings = self.perturbation, self.resample_probability, self.decisions
        for _ in range(_MAX_TRIES):
            made = perturbed(context.spec, parent, rng, *settings)
            if context.infeasibility_reason(made) is None:
                return made
        return dict(parent)

    def _value(self, curve: TrialCurve, generation: int) -> float | None:
        """The reward of a trial at its pause in a generation; None without one."""
        for step in curve.pauses:
            if self._generation_at(curve, step) == generation:
                return next((m.reward for m in curve.measurements if m.step == step), None)
        return None

    def _generation_at(self, curve: TrialCurve, step: int) -> int:
        return int(resource_at(curve, step) // self.interval)

    def _generation(self, curve: TrialCurve, known: Mapping[int, TrialCurve]) -> int:
        """The generation of a trial's last pause, or of its fork; 0 before."""
        paused = self._generation_at(curve, curve.pauses[-1]) if curve.pauses else 0
        return max(paused, self._birth(curve, known))

    def _birth(self, curve: TrialCurve, known: Mapping[int, TrialCurve]) -> int:
        """The generation in which a trial was forked; 0 if it was not."""
        if curve.forked_from is None:
            return 0
        parent, step = curve.forked_from
        # Resources are known at measurements: not at the beginning of a fork.
        for each in (known.get(parent), known.get(curve.replaces or 0)):
            if each is not None:
                return self._generation_at(each, step)
        # Both turned out infeasible.
        return int(
            (step if self.unit == 'steps' else min(curve.resources, default=0)) // self.interval
        )

    def check_space(self, spec: pg.DNASpec) -> None:
        known = sorted({name for point in numbers(spec) for name in names_of(point)})
        if not known:
            raise UserError(
                'PopulationBasedTraining perturbs numbers, and the space has none: make one with '
                'floatv or intv, or use another scheduler'
            )
        for index, name in enumerate(self.decisions or ()):
            if name not in known:
                path = pg.KeyPath(['decisions', index], self.sym_path)
                hint = nearest(name, known) or f'Its numbers are {", ".join(known)}.'
                raise UserError(f'{path}: {name!r} is not a number of the search space. {hint}')


def _has_gone_on(curve: TrialCurve) -> bool:
    """True if the first generation is over for a trial."""
    return curve.forked_from is not None or (bool(curve.pauses) and curve.state != 'paused')


def _is_put_out(curve: TrialCurve) -> bool:
    """True if a member was stopped while it was paused, for one that is infeasible by now."""
    return curve.state == 'stopped' and bool(curve.pauses)


def _is_end(paused: Curves, curves: Curves) -> bool:
    """True if trials have nothing left to train after the step at which some are paused.

    The last step of a function is unknown until a trial has ended there.
    """
    step = max(each.pauses[-1] for each in paused)
    ends = {each.measurements[-1].step for each in curves if each.measurements}
    completed = (each for each in curves if each.state == 'completed' and each.measurements)
    return max(ends, default=0) <= step and any(
        each.measurements[-1].step == step for each in completed
    )


def _origin(curve: TrialCurve) -> int:
    """The step at which a trial resumed last; -1 if it never did."""
    forked = curve.forked_from[1] if curve.forked_from is not None else -1
    return max([forked, *curve.pauses])
