import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms.encoding import density
from paxtune.algorithms.encoding.points import encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace

SPACE = FlatSpace(
    pg.dna_spec(
        pg.Dict(
            x=pg.floatv(0.0, 1.0),
            layer=pg.oneof(['none', pg.Dict(rate=pg.floatv(0.0, 1.0)), 'other']),
            width=pg.oneof([16, 32, 64, 128]),
        )
    )
)
NONE = np.full(4, np.nan)


def _made(*rows: list[float], prior: np.ndarray = NONE, strength: float = 0.0) -> density.Density:
    return density.fit(
        encoding_spec(SPACE), np.array(rows).reshape(-1, 4), prior, np.full(4, 0.2), strength
    )


FIRST = [0.2, 0.5, 0.9, 0.375]
SECOND = [0.8, 1 / 6, np.nan, 0.375]


def test_the_density_of_the_unit_cube_sums_to_one():
    numbers = np.random.default_rng(0).random((20_000, 4))
    # Categories are in the middle of their cells; so are ordinal choices.
    numbers[:, 1] = (np.floor(3 * numbers[:, 1]) + 0.5) / 3
    found = np.exp(_made(FIRST, SECOND).log_density(numbers))
    assert np.mean(found) == pytest.approx(1.0, abs=0.05)


def test_draws_have_the_density():
    made = _made(FIRST, SECOND)
    rows = made.sample(20_000, np.random.default_rng(0))
    # The mean of the reciprocal density of draws is the volume of the unit cube.
    rows[:, 1] = (np.floor(3 * rows[:, 1]) + 0.5) / 3
    assert np.mean(np.exp(-made.log_density(rows))) == pytest.approx(1.0, abs=0.1)


def test_trials_raise_the_density_around_them():
    near, far = [0.22, 0.5, 0.88, 0.375], [0.6, 0.5, 0.2, 0.875]
    value = _made(FIRST).log_density(np.array([near, far]))
    assert value[0] > value[1] + 1.0


def test_no_trial_makes_a_uniform_density():
    rows = np.random.default_rng(0).random((5, 4))
    np.testing.assert_allclose(_made().log_density(rows), 0.0, atol=1e-12)


def test_an_inactive_feature_does_not_count():
    rows = np.array([[0.8, 1 / 6, value, 0.375] for value in (np.nan, 0.1, 0.9)])
    values = _made(SECOND).log_density(rows)
    np.testing.assert_allclose(values, values[0])


def test_an_ordinal_kernel_reaches_neighbouring_candidates():
    made = _made(*[FIRST] * 1000)
    rows = made.sample(1000, np.random.default_rng(0))
    assert len(set(np.floor(4 * rows[:, 3]))) >= 3


def test_a_prior_adds_a_kernel_of_its_strength():
    prior = np.array([0.7, np.nan, np.nan, np.nan])
    rows = _made(FIRST, prior=prior, strength=98.0).sample(1000, np.random.default_rng(0))
    assert np.median(np.abs(rows[:, 0] - 0.7)) < 0.2
    assert np.std(rows[:, 2]) > 0.25


def test_a_category_with_one_candidate_changes_nothing() -> None:
    space = FlatSpace(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0), only=pg.oneof(['a']))))
    rows = np.array([[0.2, 0.5], [0.8, 0.5]])
    made = density.fit(encoding_spec(space), rows, NONE[:2], NONE[:2], 0.0)
    assert np.isfinite(made.log_density(rows)).all()
    assert np.isfinite(made.sample(8, np.random.default_rng(0))).all()
