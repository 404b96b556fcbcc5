"""PyGlove's algorithms, and a user's, as algorithms of a study."""

import dataclasses
import random
import time

import pyglove as pg
import pytest

from paxtune.algorithms import DnaGenerator, Observation, SuggestionContext
from paxtune.algorithms.external.pyglove_scaling import (
    ScaledMutator,
    ScaledRandom,
    scale_and_seed,
)
from paxtune.search_space.decisions import to_dna
from tests.conformance.algorithm_suite import (
    ask,
    check_algorithm,
    conditional,
    log_range,
    merit,
    past,
    run,
    searched,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

pytestmark = pytest.mark.contract

EVOLUTIONS = {
    'neat': {'population_size': 3},
    'hill_climb': {},
    'nsga2': {'population_size': 2},
    'regularized_evolution': {'population_size': 3, 'tournament_size': 2},
}
"""PyGlove's, with arguments that let them evolve within a few trials."""


def evolution(name: str) -> DnaGenerator:
    return DnaGenerator(f'pyglove.evolution.{name}', EVOLUTIONS[name])


class Halving(pg.DNAGenerator):
    """Proposes half of the best number; its state is not part of the observations."""

    start: float = 1.0

    def _setup(self) -> None:
        self._next = self.start
        self._rng = random.Random(0)

    def _propose(self) -> pg.DNA:
        self._next /= 1.5 + self._rng.random()
        return pg.DNA(self._next)

    def _feedback(self, dna: pg.DNA, reward: float) -> None:
        if reward < 0:
            self._next = min(1.0, 1.1 * dna.value)


class Moody(pg.DNAGenerator):
    """Draws from the module `random`: its proposals are not repeatable."""

    def _propose(self) -> pg.DNA:
        dna = pg.random_dna(self.dna_spec)
        dna.set_metadata('mood', 'fine')
        dna.set_metadata('what', {'kept': 'nowhere'})
        return dna

    def recover(self, history) -> None:
        super().recover(history)
        self.recovered = [(dna.metadata.get('mood'), reward) for dna, reward in history]


def made(start: float) -> Halving:
    return Halving(start)


def unsaid(start: float):
    return Halving(start)


@pytest.mark.slow
@pytest.mark.parametrize('name', EVOLUTIONS)
def test_evolutions_conform(name):
    check_algorithm(evolution(name))


def test_a_sweep_conforms_without_ranges():
    sweep = DnaGenerator('pyglove.geno.Sweeping')
    spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, pg.oneof([2, 3])])))
    assert [list(trial.decisions.values()) for trial in run(sweep, spec, 9)] == [
        [0],
        [1, 0],
        [1, 1],
    ]
    with pytest.raises(UserError, match=r'Sweeping cannot search this space.*RandomSearch'):
        sweep.check_space(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))), 1)


def scores(trials: list[Observation]) -> list[dict[str, int | float]]:
    return [trial.decisions for trial in trials]


@pytest.mark.parametrize('name', EVOLUTIONS)
@pytest.mark.fast(2)
def test_a_new_process_continues_with_the_same_suggestions(name):
    """Trials run in parallel, end out of order, fail; and a third of all is forbidden."""
    spec, algorithm = pg.dna_spec(conditional()), evolution(name)

    def study(forgets: bool) -> list[Observation]:
        rng, trials = random.Random(1), list[Observation]()
        for number in range(1, 16):
            # As in another process: the kept replays are those of the same object.
            own = spec.clone() if forgets else spec
            suggestion = ask(
                algorithm, own, trials, infeasible=lambda d: 'no' if d['scale'] < 0.6 else None
            )
            trials.append(
                Observation(
                    number,
                    suggestion.decisions,
                    'pending',
                    algorithm_state=suggestion.algorithm_state,
                )
            )
            for i, trial in enumerate(trials):
                if trial.state == 'pending' and rng.random() < 0.4:
                    ended = past(trial.id, suggestion, rng.random() < 0.2)
                    trials[i] = dataclasses.replace(trial, state=ended.state, scores=ended.scores)
        return trials

    kept, forgotten = study(forgets=False), study(forgets=True)
    assert kept == forgotten
    assert len({tuple(trial.decisions.items()) for trial in kept}) == 15
    assert 'recovered' not in kept[-1].algorithm_state


def test_evolution_improves():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-4, 1.0, 'log'), y=intv(1, 100)))
    history = searched(
        evolution('hill_climb'), spec, lambda made: -abs(made['y'] - 50) - abs(made['x'] - 1e-2), 59
    )
    firsts, lasts = history[:10], history[-10:]
    assert max(t.scores for t in lasts) > max(t.scores for t in firsts)
    assert max(trial.scores[0] for trial in history) > -2


def test_initial_and_earlier_trials_are_fed_back():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.floatv(0.0, 1.0)))
    known = [Observation(-1, {'x': 0.5, 'y': 0.5}, 'completed', (9.0,))]
    known.append(Observation(1, {'x': 0.1, 'y': 0.1}, 'completed', (1.0,)))
    child = ask(evolution('hill_climb'), spec, known).decisions
    assert len({*child.values()} & {0.5}) == 1, 'a child of the best'
    with_more = [*known, Observation(2, child, 'completed', (99.0,))]
    assert (
        len({*ask(evolution('hill_climb'), spec, with_more).decisions.values()} & {*child.values()})
        == 1
    )


def test_a_stateful_user_generator_continues():
    spec = pg.dna_spec(pg.floatv(0.0, 1.0))
    algorithm = DnaGenerator(f'{__name__}.Halving', {'start': 0.8})
    trials = run(algorithm, spec, 6)
    for trial in range(1, 6):
        assert ask(algorithm, spec.clone(), trials[:trial]).decisions == trials[trial].decisions
    assert (
        DnaGenerator(f'{__name__}.made', {'start': 0.8})
        .suggest(SuggestionContext(spec, 0, 1, list))
        .decisions
        == trials[0].decisions
    )


def test_an_edited_generator_of_the_same_name_is_another_one(monkeypatch):
    spec, algorithm = pg.dna_spec(pg.floatv(0.0, 1.0)), DnaGenerator(f'{__name__}.Edited')
    for value in (0.25, 0.75):

        class Edited(pg.DNAGenerator):
            def _propose(self, value=value) -> pg.DNA:
                return pg.DNA(value)

        monkeypatch.setitem(globals(), 'Edited', Edited)
        assert list(ask(algorithm, spec, []).decisions.values()) == [value]


def test_unrepeatable_generators_are_recovered():
    spec = pg.dna_spec(log_range())
    algorithm = DnaGenerator(f'{__name__}.Moody')
    trials = run(algorithm, spec, 3, infeasible=0.0)
    assert trials[0].algorithm_state['metadata'] == '{"mood": "fine"}'
    suggestion = ask(algorithm, spec.clone(), trials)
    assert suggestion.algorithm_state['recovered'] == 'true'
    again = ask(algorithm, spec, [*trials, past(4, suggestion)])
    assert again.algorithm_state['recovered'] == 'true'


def test_missing_trials_cause_a_recovery():
    spec, algorithm = pg.dna_spec(conditional()), evolution('regularized_evolution')
    trials = run(algorithm, spec, 8)
    del trials[2]
    suggestion = ask(algorithm, spec, trials)
    assert suggestion.algorithm_state['recovered'] == 'true'
    to_dna(spec, suggestion.decisions)


def test_seeds_differ_and_a_given_seed_is_kept():
    spec = pg.dna_spec(log_range())
    algorithm = evolution('neat')
    assert ask(algorithm, spec, []) != ask(algorithm, spec, [], seed=1)
    seeded = DnaGenerator('pyglove.evolution.neat', {'seed': 3})
    assert ask(seeded, spec, []).decisions == ask(seeded, spec, []).decisions


def test_the_global_random_state_is_unchanged():
    spec = pg.dna_spec(conditional())
    before = random.getstate()
    run(evolution('regularized_evolution'), spec, 6)
    assert random.getstate() == before


def test_suggestions_are_fast_after_a_hundred_trials():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(5)}))
    algorithm, history = evolution('regularized_evolution'), list[Observation]()
    for number in range(1, 101):
        suggestion = ask(algorithm, spec, history)
        history.append(past(number, suggestion))
    begin = time.process_time()
    ask(algorithm, spec, history)
    assert time.process_time() - begin < 0.3


def test_several_rewards_require_a_multi_objective_generator():
    spec = pg.dna_spec(log_range())
    evolution('nsga2').check_space(spec, 3)
    with pytest.raises(UserError, match=r'neat needs one reward; there are 3.*NSGA2'):
        evolution('neat').check_space(spec, 3)
    with pytest.raises(UserError, match='needs a reward'):
        evolution('nsga2').check_space(spec, 0)
    DnaGenerator('pyglove.geno.Random').check_space(spec, 0)


@pytest.mark.parametrize(
    ('generator', 'kwargs', 'message'),
    [
        ('os.system', {}, r'^search.algorithm.generator: os.system is no DNAGenerator'),
        ('pyglove.load', {}, 'pyglove.load is no DNAGenerator'),
        ('pyglove.coding.run', {}, 'is no DNAGenerator'),
        ('pyglove.nothing', {}, 'does not exist: pyglove has no nothing'),
        ('antigravity.fly', {}, 'its module is not imported'),
        ('neat', {}, 'expected the import path'),
        (f'{__name__}.unsaid', {'start': 1.0}, 'nor a function with this return type'),
        (f'{__name__}.made', {}, 'rejects its arguments'),
        ('pyglove.evolution.neat', {'size': 3}, 'rejects its arguments'),
        (f'{__name__}.Halving', {}, 'Halving cannot search this space'),
    ],
)
def test_invalid_generators_are_rejected_before_the_first_trial(generator, kwargs, message):
    with pytest.raises(UserError, match=message):
        DnaGenerator(generator, kwargs).check_space(pg.dna_spec(log_range()), 1)


def test_arguments_are_plain_data():
    with pytest.raises(ValueError, match=r'kwargs.mutator: expected numbers'):
        DnaGenerator('pyglove.evolution.neat', {'mutator': ScaledMutator()})


def test_mutations_and_draws_use_scales():
    spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-6, 1.0, 'log'), width=intv(1, 4095, 'log')))
    generator = ScaledRandom(0)
    generator.setup(spec)
    mutator = ScaledMutator(0)
    parent = to_dna(spec, {'rate': 0.9, 'width': 4000})
    for dnas in (
        [generator.propose() for _ in range(100)],
        [mutator.mutate(parent) for _ in range(200)],
    ):
        rates = [dna.to_numbers()[0] for dna in dnas if dna.to_numbers()[0] != 0.9]
        widths = [dna.to_numbers()[1] for dna in dnas if dna.to_numbers()[1] != 4000]
        assert 0.35 < sum(rate < 1e-3 for rate in rates) / len(rates) < 0.65
        assert 0.35 < sum(width < 64 for width in widths) / len(widths) < 0.65


def test_all_parts_are_seeded():
    parts = pg.evolution
    inside = parts.Choice([(parts.mutators.Uniform(), 0.5)]) >> parts.mutators.Swap(seed=5)
    algorithm = parts.Evolution(
        parts.selectors.Random(2) >> inside, population_init=(pg.geno.Random(), 3)
    )
    ready = scale_and_seed(algorithm, 0)
    found = pg.query(ready, where=lambda part: hasattr(part, 'seed'), enter_selected=True)
    assert 5 in [part.seed for part in found.values()]
    assert None not in [part.seed for part in found.values()]
    assert isinstance(ready.population_init[0], ScaledRandom)
    ((uniform, _),) = next(part.ops for part in found.values() if isinstance(part, parts.Choice))
    assert uniform.seed is not None


def test_scores_are_fed_back():
    # The other tests rely on this: rewards reach the generator.
    spec = pg.dna_spec(pg.floatv(0.0, 1.0))
    trials = run(DnaGenerator(f'{__name__}.Halving'), spec, 2, infeasible=0.0)
    assert merit(trials[0].decisions) < 0
    assert trials[1].algorithm_state['reported'] == '1'
