import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Exhausted, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.external import import_path
from paxtune.algorithms.external.pyglove_replay import (
    Replay,
    Unrepeatable,
    event_log,
    proposal_state,
    recover,
)
from paxtune.algorithms.external.pyglove_scaling import ScaledMutator, scale_and_seed
from paxtune.search_space.decisions import from_dna
from trainer.symbolic.code_key import code_key
from trainer.symbolic.errors import UserError, in_short
from trainer.symbolic.serialization import to_json_text

_MAX_TRIES = 20

_replays: dict[tuple[str, str, int], Replay] = {}
_replays_lock = threading.Lock()
_MAX_REPLAYS = 4


class DnaGenerator(Algorithm):
    """Adapts a `pg.DNAGenerator`: PyGlove's evolutionary algorithms, or a user's own.

    PyGlove's algorithms are stateful; a study does not store their state. Each trial records the
    feedback that the generator had received, and the number of its proposals. A missing state is
    rebuilt by replaying these events, so that a study continues after a restart with the same
    suggestions. The generator therefore needs random numbers of its own. A field `seed` that is
    None is set, in the generator and in all of its parts. An argument `seed` is given unless
    `kwargs` has one. A generator whose replay differs, for example because it uses the module
    `random`, gets the trials by its `recover` from then on. Its suggestions are then legal, but
    not reproducible.

    An argument `mutator` that `kwargs` lacks becomes a `ScaledMutator`, and a `pg.geno.Random` a
    `ScaledRandom`, because PyGlove's own ignore scales.

    The generator gets feedback for all completed trials, also for trials that it did not propose:
    initial trials, trials that users added, trials of earlier studies. (An `Evolution` gets these
    as members of its first population.) It gets none for infeasible trials, as in `pg.sample`.
    Proposals that were tried or are infeasible are skipped. After 20 of these a random experiment
    follows, and the generator gets its feedback. With several rewards the feedback is a tuple.

    Attributes:
        generator: import path of a class, or of a function with this return type; see
            `paxtune.algorithms.external.import_path` for the rules.
        kwargs: arguments: numbers, strings, lists and dictionaries.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log')))
        >>> neat = DnaGenerator('pyglove.evolution.neat', {'population_size': 20})
        >>> neat.suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.00...}
    """

    generator: str
    kwargs: dict[str, Any] = {}

    @property
    def factory(self) -> str:
        """Import path of the class or function."""
        return str(self.generator)

    def check(self) -> None:
        import_path.to_plain(self.kwargs, 'kwargs')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        generator = self._create(0)
        if generator.needs_feedback:
            one = not generator.multi_objective
            self._require_reward(num_objectives, one, self.generator)
        try:
            replay = Replay(generator, spec)
            with contextlib.suppress(StopIteration):
                for _ in range(2):
                    if dna := replay.propose():
                        from_dna(spec, dna)
        except Exception as error:
            raise UserError(
                f'search.algorithm: {self.generator} cannot search this space: '
                f'{type(error).__name__}: {in_short(error)}. Use RandomSearch or '
                'RegularizedEvolution.'
            ) from error

    def suggest(self, context: SuggestionContext) -> Suggestion:
        key = to_json_text(self), code_key(self._factory()), context.seed
        with _replays_lock:
            replay = _replays.pop(key, None)
        try:
            events = event_log(context.observations)
            if replay is None or not replay.is_prefix(context.spec, events):
                replay = Replay(self._create(context.seed), context.spec)
            replay.apply(events)
        except Unrepeatable:
            seed = import_path.derive_seed(context.seed, context.number)
            replay = recover(self._create(seed), context)
        suggestion = self._next(replay, context)
        if not replay.is_recovered:
            with _replays_lock:
                _replays[key] = replay
                while len(_replays) > _MAX_REPLAYS:
                    del _replays[next(iter(_replays))]
        return suggestion

    def _next(self, replay: Replay, context: SuggestionContext) -> Suggestion:
        reported = replay.reported
        for count in range(1, _MAX_TRIES + 1):
            try:
                dna = replay.propose()
            except StopIteration:
                raise Exhausted from None
            if dna is None:
                break
            decisions = from_dna(context.spec, dna)
            if context.is_eligible(decisions):
                state = proposal_state(reported, count, dna, replay.is_recovered)
                replay.record(context.number, decisions, state, dna)
                return Suggestion(decisions, algorithm_state=state)
        state = proposal_state(reported, count, None, replay.is_recovered)
        decisions = draw_eligible(context, context.rng())
        replay.record(context.number, decisions, state, None)
        return Suggestion(decisions, algorithm_state=state)

    def _factory(self) -> Callable[..., Any]:
        return import_path.resolve(self.generator, pg.DNAGenerator, 'search.algorithm.generator')

    def _create(self, seed: int) -> pg.DNAGenerator:
        make = self._factory()
        given: Mapping[str, Any] = import_path.to_plain(self.kwargs, 'search.algorithm.kwargs')
        accepted, added = inspect.signature(make).parameters, {}
        if 'seed' in accepted and 'seed' not in given:
            added['seed'] = import_path.derive_seed(seed, 'seed')
        if 'mutator' in accepted and 'mutator' not in given:
            added['mutator'] = ScaledMutator(import_path.derive_seed(seed, 'mutator'))
        try:
            made = make(**added, **given)
        except (TypeError, ValueError) as error:
            raise UserError(
                f'search.algorithm: {self.generator} rejects its arguments: {in_short(error)}'
            ) from error
        if not isinstance(made, pg.DNAGenerator):
            raise UserError(f'search.algorithm.generator: {self.generator} returned a {type(made)}')
        return scale_and_seed(made, import_path.derive_seed(seed, 'parts'))
