import json
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from paxtune.study import initial_trials
from paxtune.study.portfolio import portfolio
from trainer.symbolic.errors import UserError


def _search(directory: Path, best: float, trials: int = 10) -> None:
    tune(
        lambda v: 10 * (v.x - best) ** 2 + v.y,
        space={'x': pg.floatv(0.0, 1.0), 'y': pg.oneof([0, 1])},
        objective='minimize',
        algorithm='quasi_random',
        num_trials=trials,
        quiet=True,
        job_log_dir=directory,
    ).close()


@pytest.mark.slow
def test_a_portfolio_is_good_in_every_study_and_no_longer_than_it_helps(tmp_path: Path) -> None:
    """Two studies like a small number, one a large one: the small one comes first."""
    for name, best in (('a', 0.1), ('b', 0.1), ('c', 0.9)):
        _search(tmp_path / name, best)
    with (
        load_study(tmp_path / 'a') as a,
        load_study(tmp_path / 'b') as b,
        load_study(tmp_path / 'c') as c,
    ):
        small, large = portfolio([a, b, c], 2)
        assert len(portfolio([a], 10)) == 1
    assert (small['y'], large['y']) == (0, 0)
    assert abs(small['x'] - 0.1) < 0.15
    assert abs(large['x'] - 0.9) < 0.15


def test_a_portfolio_is_of_studies_with_one_reward_and_some_trials(tmp_path: Path) -> None:
    _search(tmp_path / 'short', 0.5, trials=1)
    with (
        load_study(tmp_path / 'short') as short,
        pytest.raises(UserError, match='fewer than two trials were completed'),
    ):
        portfolio([short], 3)


def test_a_portfolio_of_another_space_gives_the_decisions_that_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / 'known.json'
    given = [{'x': 0.5, 'y': 1}, {'x': 7.0, 'y': 1}, {'x': 0.5, 'y': 2}, {'z': 3}]
    file.write_text(json.dumps({'portfolio': given, 'studies': ['runs/a']}))
    space = Space(pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof([1, 3])))
    expected = [{'x': 0.5, 'y': 1}, {'y': 1}, {'x': 0.5}]
    assert initial_trials.read(str(file), space) == expected
    assert 'left out, as they do not fit here: x, y, z' in caplog.text
    with pytest.raises(UserError, match='no decision of this portfolio'):
        initial_trials.read(str(file), Space(pg.Dict(other=pg.floatv(0.0, 1.0))))


def test_a_portfolio_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / 'known.json'
    for text in ('{"portfolio": [1]}', '{"portfolio": [{"x": {"_type": "os.system"}}]}'):
        file.write_text(text)
        with pytest.raises(UserError, match='--initial_trials='):
            initial_trials.read(str(file), Space(pg.Dict(x=pg.floatv(0.0, 1.0))))
