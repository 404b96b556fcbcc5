"""Numbers of NumPy and JAX in the fields of components and of PyGlove."""

import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pyglove as pg
import pytest

from tests.servers.processes import ROOT, environment
from trainer.symbolic.component import Component, Count, Number, OptionalNumber
from trainer.symbolic.plain_numbers import is_array, plain, with_plain_numbers
from trainer.symbolic.ranges import intv
from trainer.symbolic.serialization import from_json_text, to_json_text


class Fields(Component):
    """A field of each type that a number may have."""

    count: int = 1
    limit: int | None = None
    steps: Count = 1
    share: float = 1.0
    rate: Number = 1.0
    optional: OptionalNumber = None
    shares: list[float] = []
    is_on: bool = False
    either: str | int = 'auto'
    anything: Any = None


INTEGERS = [np.int64(3), np.uint8(3), np.array(3), jnp.int32(3), jnp.array(3)]
FLOATS = [np.float32(0.5), np.float16(0.5), np.array(0.5), jnp.float32(0.5), jnp.bfloat16(0.5)]


@pytest.mark.parametrize('number', INTEGERS)
@pytest.mark.parametrize('field', ['count', 'limit', 'steps', 'either'])
def test_an_integer_field_takes_integers_of_libraries(field: str, number: Any) -> None:
    value = Fields(**{field: number}).sym_getattr(field)
    assert (value, type(value)) == (3, int)


@pytest.mark.parametrize('number', [*FLOATS, *INTEGERS])
@pytest.mark.parametrize('field', ['share', 'rate', 'optional'])
def test_a_field_of_numbers_takes_numbers_of_libraries(field: str, number: Any) -> None:
    value = Fields(**{field: number}).sym_getattr(field)
    assert (value, type(value)) == (float(number), float)
    assert Fields(shares=[number]).shares == [float(number)]


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'count': np.float32(3.0)}, 'expected an integer, not np.float32'),
        ({'count': np.bool_(True)}, 'expected an integer, not np.True_'),
        ({'count': np.arange(3)}, 'expected an integer, not array'),
        ({'share': np.bool_(True)}, 'expected a number, not np.True_'),
        ({'share': np.array([1.0])}, 'expected a number, not array'),
        ({'is_on': np.int64(1)}, 'expected True or False, not np.int64'),
    ],
)
def test_a_field_refuses_values_of_another_type(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Fields(**fields)


def test_truth_values_of_numpy_are_taken() -> None:
    assert Fields(is_on=np.bool_(True)).is_on is True


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_('a'), 'a'),
        (ml_dtypes.bfloat16(0.5), 0.5),
        (ml_dtypes.int4(3), 3),
        (np.longdouble(0.5), 0.5),
    ],
)
def test_scalars_become_plain(value: Any, expected: object) -> None:
    assert (plain(value), type(plain(value))) == (expected, type(expected))


@pytest.mark.parametrize('value', [np.arange(3), np.array([1]), [np.int64(1)], object(), 2**70])
def test_other_values_stay(value: Any) -> None:
    assert plain(value) is value
    assert is_array(value) == isinstance(value, np.ndarray)


def test_the_bounds_of_ranges_are_numbers_of_libraries() -> None:
    ends: list[Any] = [np.int64(1), jnp.int32(4)]
    made = [pg.floatv(np.float32(0.5), jnp.float32(4)), intv(*ends)]
    assert [(each.min_value, each.max_value) for each in made] == [(0.5, 4.0), (1.0, 4.0)]
    assert pg.manyof(np.int64(2), [1, 2, 3]).num_choices == 2


def test_json_has_plain_numbers() -> None:
    given = Fields(anything=[np.int64(3), {'x': jnp.float32(0.5), 'y': np.bool_(True)}])
    assert from_json_text(to_json_text(given), Fields).anything == [3, {'x': 0.5, 'y': True}]
    assert with_plain_numbers(given).anything == [3, {'x': 0.5, 'y': True}]
    plain_ones = Fields(anything=[3, {'x': 0.5}])
    assert with_plain_numbers(plain_ones) is plain_ones


@pytest.mark.parametrize(
    'imports',
    [
        'from paxtune import tune; import pyglove as pg',
        'import pyglove as pg, paxtune; paxtune.tune',
    ],
)
def test_ranges_take_numbers_once_a_name_of_the_package_is_used(imports: str) -> None:
    code = f'{imports}; import numpy as np; print(pg.floatv(np.float32(0.5), 1).min_value)'
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == '0.5\n'
