import pyglove as pg
import pytest

from paxtune.algorithms import Grid
from paxtune.algorithms.encoding.enumeration import enumerate_decisions
from paxtune.config.budget import Budget
from paxtune.experiment import Tunable
from paxtune.schedulers import MedianStopping
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from paxtune.study.sweeps import parameter_sweep
from tests.factories.tiny import experiment
from tests.factories.tunables import REWARD, Kinds, Rates
from trainer.layers import FeedForward, GatedFeedForward
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

RATE, DIMS = 'task.learner.learning_rate', 'task.model.embedding.dims'
LAYER = 'task.model.stack.layers[0].feed_forward'
HEADER = [RATE, DIMS]
ROWS = [[0.1, 16], [0.01, 32], [0.001, 64]]


def trials(sweep: Tunable) -> list[tuple[float, int]]:
    """The rate and the width of every trial."""
    space = Space(sweep)
    made = [space.materialize(decisions) for decisions in enumerate_decisions(space.spec)]
    return [(each.task.learner.learning_rate, each.task.model.embedding.dims) for each in made]


@pytest.mark.pax('parameter_sweep(rows)')
def test_rows():
    assert trials(parameter_sweep(Rates(), HEADER, ROWS)) == [tuple(row) for row in ROWS]


@pytest.mark.pax('parameter_sweep()')
def test_all_combinations():
    tunable = Rates()
    tunable.rebind({RATE: pg.oneof([0.1, 0.01]), DIMS: intv(16, 18)})
    found = trials(parameter_sweep(tunable))
    assert sorted(found) == sorted((rate, dims) for rate in (0.1, 0.01) for dims in (16, 17, 18))


@pytest.mark.pax('parameter_sweep()')
def test_the_search_is_a_sweep_and_keeps_the_rest():
    sweep = parameter_sweep(Kinds(), [RATE, LAYER], [[0.1, FeedForward(8)]], seed=3)
    assert sweep.search.algorithm == Grid(points_per_range=None)
    assert sweep.search.scheduler is None
    assert sweep.search.budget.trials is None
    assert (sweep.search.objective, sweep.search.seed) == (REWARD, 3)


@pytest.mark.pax('Sweep options: no')
def test_fields_of_the_search_can_be_given():
    sweep = parameter_sweep(
        experiment(), HEADER, ROWS, objective=REWARD, budget=Budget(2), scheduler=MedianStopping()
    )
    assert (sweep.search.objective, sweep.search.budget.trials) == (REWARD, 2)
    assert sweep.search.scheduler == MedianStopping()


def test_a_plain_experiment_gets_a_search_without_a_reward():
    plain = experiment(num_steps=3)
    sweep = parameter_sweep(plain, HEADER, ROWS)
    assert isinstance(sweep, Tunable)
    assert sweep.search.objective is None
    assert sweep.train == plain.train
    assert trials(sweep) == [tuple(row) for row in ROWS]


@pytest.mark.pax(14)
@pytest.mark.parametrize('make', [Rates, experiment])
def test_the_experiment_itself_stays_as_it_is(make):
    layer = FeedForward(8)
    given, table = make(), [[0.1, layer]]
    before = given.to_json_str()
    parameter_sweep(given, [RATE, LAYER], table)
    if isinstance(given, Tunable):
        given.rebind({RATE: 0.1, 'task.model.stack.repeats': pg.oneof([1, 2])})
        before = given.to_json_str()
        parameter_sweep(given)
    assert given.to_json_str() == before
    assert table == [[0.1, FeedForward(8)]]
    assert layer.sym_parent is None


def test_rows_of_components_and_values_as_their_fields_hold_them():
    rows = [(1, FeedForward(8)), (0.5, GatedFeedForward(8))]
    space = Space(parameter_sweep(experiment(), [RATE, LAYER], rows))
    labels = ['[1.0, FeedForward(hidden_dims=8)]', '[0.5, GatedFeedForward(hidden_dims=8)]']
    assert space.candidate_names(space.spec.elements[0]) == labels
    made = space.materialize(space.parse({'shared.sweep': labels[1]}))
    assert made.sym_get(LAYER) == GatedFeedForward(8)
    rate = space.materialize(space.parse({'shared.sweep': labels[0]})).task.learner.learning_rate
    assert (rate, type(rate)) == (1.0, float)


def test_a_column_may_be_a_shared_value():
    from trainer.symbolic.derived import derived

    tunable = Rates()
    tunable.rebind({RATE: 0.1, 'shared': {'dims': 16}, DIMS: derived('shared.dims')})
    assert trials(parameter_sweep(tunable, ['shared.dims'], [[32], [64]])) == [(0.1, 32), (0.1, 64)]


def test_a_sweep_can_be_studied_and_ends_with_its_rows():
    with open_study(None, parameter_sweep(experiment(), HEADER, ROWS)) as study:
        assert study.space.size == 3
        suggested = []
        while (trial := study.ask()) is not None:
            suggested.append(trial.decisions['shared.sweep'])
            trial.fail('only asked for')
        assert suggested == [str(row) for row in ROWS]


@pytest.mark.parametrize(
    ('paths', 'rows', 'message'),
    [
        (['task.learner.lerning_rate'], [[1]], 'task.learner.lerning_rate: .* Did you mean'),
        (['nothing at all'], [[1]], 'not a path'),
        (['search.seed'], [[1]], 'search.seed: the search itself cannot be searched'),
        ([], [[]], 'name at least one path'),
        (HEADER, [], 'give at least one row'),
        (HEADER, [[0.1, 16], [0.1]], r'row 2: expected 2 values, one for each path: \[0.1\]'),
        ([RATE], [0.1, 0.2], 'row 1: expected 1 values'),
        ([RATE], ['a'], 'row 1: expected 1 values'),
        (HEADER, [[0.1, 16], [0.1, 'wide']], f"row 2: {DIMS}: expected an integer, got 'wide'"),
        (HEADER, [[0.1, pg.oneof([1, 2])]], 'row 1: a row has values, and no decisions'),
        ([RATE, RATE], [[1, 2]], 'are, in part, the same'),
        (['task.learner', RATE], [[1, 2]], 'task.learner and .*learning_rate are, in part'),
        ([DIMS], [[8]], f'found extra decisions, at {RATE}'),
        (None, [[8]], 'both the paths and the rows'),
        ([DIMS], None, 'both the paths and the rows'),
        (None, None, f'{RATE} is continuous, from 0.0001 to 0.1'),
    ],
)
def test_tables_that_do_not_fit_are_refused(paths, rows, message):
    with pytest.raises(UserError, match=message):
        parameter_sweep(Rates(), paths, rows)


def test_two_tables_are_refused():
    sweep = parameter_sweep(experiment(), HEADER, ROWS)
    with pytest.raises(UserError, match=r'shared.sweep is there already'):
        parameter_sweep(sweep, ['train.random_seed'], [[1], [2]])


def test_nothing_to_sweep_over():
    with pytest.raises(UserError, match='There is nothing to search'):
        parameter_sweep(experiment())
