"""Any algorithm of PyGlove's."""

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Exhausted, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.external import import_path
from paxtune.algorithms.external.pyglove_replay import (
    Replay,
    Unrepeatable,
    memo_of,
    recovered,
    steps_of,
)
from paxtune.algorithms.external.pyglove_scaling import ScaledMutator, scaled_and_seeded
from paxtune.search_space.decisions import from_dna
from trainer.symbolic.errors import UserError, in_short
from trainer.symbolic.serialization import to_json_text

_MAX_TRIES = 20

_replays: dict[tuple[str, int], Replay] = {}
_replays_lock = threading.Lock()
_MAX_REPLAYS = 4


class DnaGenerator(Algorithm):
    """Lets a `pg.DNAGenerator` propose the trials: PyGlove's evolutions, or one of your own.

    PyGlove's algorithms keep state; a study does not keep it. So with each trial it is noted what
    the generator had been told before, and how often it was asked, and that is repeated where the
    state is not at hand: after a restart a study goes on as it would have. For this its random
    numbers must be its own. A field `seed` that is None is set, in the generator and in all that
    it is composed of, and an argument `seed` is given unless `kwargs` has one. A generator that
    proposes something else when it is asked again, such as one that draws from the module `random`,
    is shown the trials by its `recover` from then on; what it suggests is then legal, and cannot be
    repeated.

    An argument `mutator` that `kwargs` does not have is a `ScaledMutator`, and what is a
    `pg.geno.Random` becomes a `ScaledRandom`: PyGlove's own know no scales.

    The generator is told of completed trials, also those that it has not proposed: seeds, trials
    that a person added, trials of earlier studies. (An `Evolution` gets them as members of its
    first population.) Infeasible ones it is not told of, as in `pg.sample`. What it proposes and
    has been tried, or is infeasible, is left out; after 20 of these a random experiment is taken,
    and the generator is told of it. With several rewards it gets a tuple of them.

    Attributes:
        generator: the dotted path of a class, or of a function that says that it returns one; see
            `paxtune.algorithms.external.import_path` for what may be named.
        kwargs: its arguments: numbers, strings, lists and dictionaries.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log')))
        >>> neat = DnaGenerator('pyglove.evolution.neat', {'population_size': 20})
        >>> neat.suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.00...}
    """

    generator: str
    kwargs: dict[str, Any] = {}

    @property
    def maker(self) -> str:
        """The dotted path of what is used."""
        return str(self.generator)

    def check(self) -> None:
        import_path.plain(self.kwargs, 'kwargs')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        generator = self._made(0)
        if generator.needs_feedback and not num_objectives:
            raise UserError(
                f'search.algorithm: {self.generator} needs a reward, to know the better trials by.'
            )
        if generator.needs_feedback and num_objectives > 1 and not generator.multi_objective:
            raise UserError(
                f'search.algorithm: {self.generator} is for one reward, and there are '
                f'{num_objectives}. RegularizedEvolution and '
                "DnaGenerator('pyglove.evolution.nsga2') search for several."
            )
        try:
            replay = Replay(generator, spec)
            with contextlib.suppress(StopIteration):
                for _ in range(2):
                    if dna := replay.propose():
                        from_dna(spec, dna)
        except Exception as error:
            raise UserError(
                f'search.algorithm: {self.generator} cannot search this space: '
                f'{type(error).__name__}: {in_short(error)}. RandomSearch and '
                'RegularizedEvolution search any.'
            ) from error

    def suggest(self, context: SuggestionContext) -> Suggestion:
        key = to_json_text(self), context.seed
        with _replays_lock:
            replay = _replays.pop(key, None)
        try:
            steps = steps_of(context.observations)
            if replay is None or not replay.leads_to(context.spec, steps):
                replay = Replay(self._made(context.seed), context.spec)
            replay.go(steps)
        except Unrepeatable:
            seed = import_path.seed_of(context.seed, context.number)
            replay = recovered(self._made(seed), context)
        suggestion = self._next(replay, context)
        if not replay.is_recovered:
            with _replays_lock:
                _replays[key] = replay
                while len(_replays) > _MAX_REPLAYS:
                    del _replays[next(iter(_replays))]
        return suggestion

    def _next(self, replay: Replay, context: SuggestionContext) -> Suggestion:
        told = replay.told_last
        for count in range(1, _MAX_TRIES + 1):
            try:
                dna = replay.propose()
            except StopIteration:
                raise Exhausted from None
            if dna is None:
                break
            decisions = from_dna(context.spec, dna)
            if context.is_eligible(decisions):
                algorithm_state = memo_of(told, count, dna, replay.is_recovered)
                replay.note(context.number, decisions, algorithm_state, dna)
                return Suggestion(decisions, algorithm_state=algorithm_state)
        algorithm_state = memo_of(told, count, None, replay.is_recovered)
        decisions = draw_eligible(context, context.rng())
        replay.note(context.number, decisions, algorithm_state, None)
        return Suggestion(decisions, algorithm_state=algorithm_state)

    def _made(self, seed: int) -> pg.DNAGenerator:
        make = import_path.find(self.generator, pg.DNAGenerator, 'search.algorithm.generator')
        given: Mapping[str, Any] = import_path.plain(self.kwargs, 'search.algorithm.kwargs')
        asked, added = import_path.parameters(make), {}
        if 'seed' in asked and 'seed' not in given:
            added['seed'] = import_path.seed_of(seed, 'seed')
        if 'mutator' in asked and 'mutator' not in given:
            added['mutator'] = ScaledMutator(import_path.seed_of(seed, 'mutator'))
        try:
            made = make(**added, **given)
        except (TypeError, ValueError) as error:
            raise UserError(
                f'search.algorithm: {self.generator} does not take its arguments: {in_short(error)}'
            ) from error
        if not isinstance(made, pg.DNAGenerator):
            raise UserError(f'search.algorithm.generator: {self.generator} returned a {type(made)}')
        return scaled_and_seeded(made, import_path.seed_of(seed, 'parts'))
