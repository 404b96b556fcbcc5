"""Numbers of NumPy and JAX, and unusual ranges and decisions, in studies of functions."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest

import paxtune
from paxtune import intv
from paxtune.algorithms import Suggestion, SuggestionContext
from paxtune.search_space.space import Space
from paxtune.study.study import Study
from trainer.symbolic.errors import UserError

SPACE = {'x': pg.floatv(0.0, 1.0)}
LARGEST = sys.float_info.max
ONE_UP = math.nextafter(1.0, 2.0)


def searched(function: Any = lambda values: 1.0, space: Any = None, **given: Any) -> Study:
    defaults: dict[str, Any] = {'objective': 'minimize', 'algorithm': 'random_search'}
    defaults |= {'num_trials': 2, 'callbacks': []}
    return paxtune.tune(function, space=space or SPACE, **{**defaults, **given})


@pytest.mark.parametrize('kind', [np.int64, np.uint8, np.array, jnp.int32])
def test_steps_are_integers_of_libraries(kind: Callable[[int], Any], tmp_path: Path) -> None:
    def yields(x: float) -> Iterator[Any]:
        for step in range(1, 4):
            yield kind(step), {'objective': x}

    def reports(x: float, trial: Any) -> None:
        for step in range(1, 4):
            trial.report(kind(step), {'objective': x})

    for function in (yields, reports):
        study = searched(function, job_log_dir=tmp_path / function.__name__)
        steps = [each.step for each in study.trials[0].measurements]
        assert steps == [1, 2, 3] and set(map(type, steps)) == {int}


@pytest.mark.parametrize(
    ('decision', 'expected'),
    [
        (pg.oneof(np.arange(3)), [0, 1, 2]),
        (pg.oneof(np.array([0.5, 1.5], np.float32)), [0.5, 1.5]),
        (pg.oneof(np.linspace(0.0, 1.0, 3)), [0.0, 0.5, 1.0]),
        (pg.oneof(jnp.arange(2)), [0, 1]),
        (pg.oneof([np.bool_(False), np.bool_(True)]), [False, True]),
        (pg.oneof(np.array(['a', 'b'])), ['a', 'b']),
        (pg.oneof([[np.int64(1)], {'y': np.float32(0.5)}]), [[1], {'y': 0.5}]),
        (pg.oneof([pg.oneof(np.arange(2)), 'a']), [0, 1, 'a']),
        (pg.permutate(np.arange(2)), [[0, 1], [1, 0]]),
        (pg.manyof(np.int64(2), np.arange(2), sorted=True), [[0, 1]]),
    ],
)
def test_candidates_of_libraries_become_plain(
    decision: Any, expected: list[Any], tmp_path: Path
) -> None:
    for directory in (None, tmp_path / 'study'):
        study = searched(
            space={'x': decision},
            algorithm=paxtune.Grid(),
            num_trials=None,
            job_log_dir=directory,
        )
        with study:
            seen = [trial.materialize().x for trial in study.trials]
            assert json.dumps(seen) == json.dumps(expected)
            texts = [str(trial.decisions) for trial in study.trials]
            assert not any('np.' in text or 'Array' in text for text in texts)


@pytest.mark.parametrize('array', [np.array([2]), jnp.arange(2), jnp.eye(2)])
def test_an_array_is_no_candidate(array: Any) -> None:
    # `pg.oneof` itself refuses a list with arrays of NumPy that have several elements.
    for candidates in ([1, array], [1, {'y': array}]):
        with pytest.raises(UserError, match=r'x\.candidates\[1\].*array of shape.*\.tolist\(\)'):
            searched(space={'x': pg.oneof(candidates)})
    with pytest.raises(UserError, match=r'constant is .*: to search it, write pg\.oneof'):
        searched(space={**SPACE, 'constant': array})


@pytest.mark.parametrize('kind', [np.int64, jnp.int32])
def test_settings_of_a_search_take_integers_of_libraries(kind: Any, tmp_path: Path) -> None:
    study = searched(
        lambda x: x,
        num_trials=kind(4),
        seed=kind(3),
        workers=kind(2),
        replicates=kind(2),
        job_log_dir=tmp_path,
    )
    assert len(study.trials) == 4
    assert type(study.search.seed) is type(study.search.budget.trials) is int
    scheduler = paxtune.Asha(min_resource=kind(1), max_resource=kind(9))
    assert len(searched(scheduler=scheduler, budget=paxtune.Budget(kind(2))).trials) == 2
    grid = searched(algorithm=paxtune.Grid(points_per_range=kind(3)), num_trials=kind(9))
    assert [trial.decisions['x'] for trial in grid.trials] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize('kind', [np.float32, jnp.float32, np.float64])
def test_decisions_that_people_give_are_numbers_of_libraries(kind: Any, tmp_path: Path) -> None:
    space = {**SPACE, 'n': intv(1, 9), 'c': pg.oneof([1, 2, 4])}
    first = {'x': kind(0.5), 'n': np.int64(3), 'c': jnp.int32(4)}
    given = {'initial_trials': [first], 'prior': {'c': np.int64(2)}, 'algorithm': 'gp_bandit'}
    with searched(space=space, job_log_dir=tmp_path, **given) as study:
        assert study.trials[0].decisions == {'x': 0.5, 'n': 3, 'c': 4}
        study.add({'x': kind(0.25), 'n': jnp.int32(2), 'c': np.int64(1)})
        trial = study.ask()
        assert trial is not None
        assert trial.decisions == {'x': 0.25, 'n': 2, 'c': 1}
        study.tell(trial, kind(1.5))
        assert study.trials[-1].reward == 1.5
        number: Any = np.int64(1)
        assert study.retry(number).lineage.retry_of == 1


class OfNumPy(paxtune.RandomSearch):
    """Suggests numbers of NumPy."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        made: dict[str, Any] = super().suggest(context).decisions
        kinds: dict[type, Any] = {float: np.float64, int: np.int64}
        return Suggestion({id_: kinds[type(value)](value) for id_, value in made.items()})


def test_an_algorithm_may_suggest_numbers_of_numpy(tmp_path: Path) -> None:
    space = {**SPACE, 'n': intv(1, 9), 'c': pg.oneof('ab')}
    own, ours = (
        searched(space=space, algorithm=algorithm, job_log_dir=directory)
        for algorithm, directory in ((OfNumPy(), tmp_path), ('random_search', None))
    )
    assert [each.decisions for each in own.trials] == [each.decisions for each in ours.trials]


# --- Ranges ---


def test_a_linear_scale_is_the_default_one(tmp_path: Path) -> None:
    def study(*scale: str) -> Study:
        return searched(space={'x': pg.floatv(0.0, 1.0, *scale), 'n': intv(1, 9, *scale)},
                        job_log_dir=tmp_path)  # fmt: skip

    study().close()
    study('linear').close()
    assert Space(pg.Dict(x=pg.floatv(0.0, 1.0, 'linear'))).value.x.scale is None


CONSTANTS = [
    (lambda: pg.floatv(1.5, 1.5), 1.5),
    (lambda: pg.floatv(1.5, 1.5, 'log'), 1.5),
    (lambda: pg.floatv(-0.0, 0.0), 0.0),
    (lambda: intv(5, 5), 5),
    (lambda: intv(5, 5, 'rlog'), 5),
]


@pytest.mark.parametrize(('made', 'value'), CONSTANTS)
def test_a_range_of_equal_bounds_is_a_constant(made: Callable[[], Any], value: Any) -> None:
    study = searched(space={'x': made()}, num_trials=None)
    assert study.space.size == 1
    assert [trial.decisions for trial in study.trials] == [{'x': value}]
    study = searched(space={'x': made(), 'y': pg.oneof([1, 2])}, num_trials=9)
    assert [trial.decisions['x'] for trial in study.trials] == [value] * 2


RANGES = [
    *(made for made, _ in CONSTANTS),
    lambda: pg.floatv(1.0, ONE_UP),
    lambda: pg.floatv(1.0, ONE_UP, 'log'),
    lambda: pg.floatv(-LARGEST, LARGEST),
    lambda: pg.floatv(5e-324, LARGEST, 'log'),
    lambda: pg.floatv(5e-324, 1e-323, 'log'),
    lambda: pg.floatv(math.nextafter(LARGEST, 0.0), LARGEST, 'log'),
    lambda: intv(-(2**53), 2**53),
    lambda: intv(1, 2**53, 'log'),
]
ALGORITHMS = [
    paxtune.QuasiRandom(), paxtune.HillClimbing(), paxtune.TPE(), paxtune.GPBandit(),
    paxtune.CMAES(), paxtune.NSGA2(population_size=4), paxtune.Grid(points_per_range=9),
    paxtune.RegularizedEvolution(population_size=4, tournament_size=2), paxtune.Portfolio(),
]  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.slow
@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('algorithm', ALGORITHMS, ids=lambda each: type(each).__name__)
def test_every_algorithm_searches_extreme_ranges(algorithm: Any) -> None:
    for made in RANGES:
        space = {'x': made(), 'y': pg.floatv(0.0, 1.0), 'c': pg.oneof([pg.Dict(z=made()), 'b'])}
        study = searched(
            lambda values: values.x / LARGEST + values.y,
            space,
            algorithm=algorithm,
            num_trials=12,
        )
        assert len(study.trials) == 12
        assert {trial.state for trial in study.trials} == {'COMPLETED'}
        hyper = made()
        for trial in study.trials:
            inside = [trial.decisions[name] for name in ('x', 'c.z') if name in trial.decisions]
            assert all(hyper.min_value <= each <= hyper.max_value for each in inside)


def test_one_decision_in_two_places_of_a_space_is_refused() -> None:
    width = pg.oneof([4, 8])
    with pytest.raises(UserError, match=r"a and b\.n are one decision object.*name='n'"):
        searched(space={'a': width, 'b': {'n': width}})
    named = pg.oneof([4, 8], name='width')
    study = searched(lambda a, b: float(a == b), {'a': named, 'b': named}, num_trials=2)
    assert [trial.reward for trial in study.trials] == [1.0, 1.0]


def test_pyglove_hides_that_a_decision_stands_twice_in_its_dict() -> None:
    width = pg.oneof([4, 8])
    given = pg.Dict(a=width, b=width)
    copy = pg.Dict(a=pg.oneof([4, 8]), b=pg.oneof([4, 8]))
    # The second one is a copy, and nothing says that it is one.
    assert given.sym_getattr('a') is width
    assert given.sym_getattr('b') is not width and pg.eq(given, copy)
    study = searched(lambda a, b: float(a == b), given, algorithm=paxtune.Grid(), num_trials=None)
    assert sorted(trial.reward or 0.0 for trial in study.trials) == [0.0, 0.0, 1.0, 1.0]


def test_pyglove_fails_on_candidates_that_begin_with_an_array() -> None:
    arrays = [np.array([1, 2]), np.array([3, 4])]
    with pytest.raises(ValueError, match='truth value of an array'):
        pg.oneof(arrays)
    study = searched(lambda x: float(x[0]), {'x': pg.oneof([each.tolist() for each in arrays])})
    assert len(study.trials) == 2
