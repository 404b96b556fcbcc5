"""The figures of `benchmarks/early_stopping.py`."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import early_stopping
from benchmarks.common import crossing_curves
from benchmarks.early_stopping import FULL, Found
from paxtune.schedulers.rung_report import rank_correlation


def found(*needed: float) -> Found:
    return Found(list(needed), [True] * len(needed), [1.0], [0.5], 0.1)


def test_savings_are_ratios_of_medians_and_their_geometric_mean() -> None:
    tables = {
        'a': {FULL: found(8.0, 8.0, 8.0), 'asha': found(4.0, 4.0, 4.0)},
        'b': {FULL: found(8.0, 8.0, 8.0), 'asha': found(1.0, 1.0, 99.0)},
    }
    value, low, high = early_stopping.saving(tables, 'asha')
    assert value == pytest.approx(4.0)
    assert low < value < high
    assert early_stopping.saving(tables, FULL) == (1.0, 1.0, 1.0)


def test_schedulers_run_on_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    levels = rng.uniform(0, 1, (80, 1))
    losses = levels + 1 / np.arange(1, 13)
    losses[::9, 6:] = np.nan
    hp = np.concatenate([10 ** (-4 * levels), rng.uniform(0.01, 0.9, (80, 1))], 1)
    file = tmp_path / 'table.npz'
    np.savez(file, hp_names=['learning_rate', 'beta1'], hp=hp, valid_loss=losses)
    of = early_stopping.of_table(file, 3, [FULL, 'asha', 'promoting_asha'])
    assert of[FULL].compute == [1.0] * 3 and all(of[FULL].reached)
    for name in ('asha', 'promoting_asha'):
        assert max(of[name].compute) < 0.7
        assert len(of[name].needed) == len(of[name].regret) == 3


@pytest.mark.parametrize('kind', crossing_curves.KINDS)
@pytest.mark.parametrize('correlation', [0.2, 0.5, 0.95])
def test_families_have_their_rank_correlation(kind: str, correlation: float) -> None:
    table = crossing_curves.family(kind, correlation, seed=7, steps=40)
    pairs = [(row.measurements[9].rewards[0], row.end or 0.0) for row in table.rows]
    assert rank_correlation(pairs) == pytest.approx(correlation, abs=0.07)


@pytest.mark.parametrize('name', crossing_curves.LATE)
def test_a_rank_correlation_hardly_shows_winners_that_begin_late(name: str) -> None:
    kind, table = crossing_curves.LATE[name], crossing_curves.late(name, seed=7)
    first = np.array([row.measurements[1].rewards[0] for row in table.rows])
    ends = np.array([row.end or 0.0 for row in table.rows])
    correlation = rank_correlation(list(zip(first, ends, strict=True)))
    assert correlation is not None and 0.4 < correlation < 0.75
    places = [float(np.mean(first < first[row])) for row in np.argsort(ends)[:20]]
    if not kind.warmups:
        assert kind.best - 0.1 < min(places) < max(places) < kind.worst + 0.1


def test_tables_that_are_not_there_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert early_stopping.main(['--data_dir=/nowhere', '--quick', '--only=full']) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith('left out: imdb_') and printed[-1] == 'RESULT {"full_worst": 1.0}'
