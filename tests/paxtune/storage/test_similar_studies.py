"""`learn_from`: the similar studies below a directory."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import MetricReward, Search
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.storage.open_study import load_study, open_plan
from paxtune.storage.similar_studies import StudiesBelow
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from trainer.symbolic.errors import UserError

COMMON: dict[str, Any] = {'objective': 'minimize', 'algorithm': 'random_search', 'quiet': True}


def _space(names: str, high: float = 1.0) -> dict[str, Any]:
    return {name: pg.floatv(0.0, high) for name in names}


def _search(directory: Path, names: str, trials: int = 3, high: float = 1.0) -> None:
    space = _space(names, high)
    tune(lambda v: v.x, space=space, num_trials=trials, job_log_dir=directory, **COMMON).close()


def _new(names: str, below: StudiesBelow, directory: Path | None = None) -> Study:
    search = Search(MetricReward('minimize', 'objective'), Budget(5))
    plan = SearchPlan.compile(pg.Dict(_space(names)), search, {})
    return open_plan(directory, plan, priors=[below])


def _sources(study: Study) -> list[str]:
    return list(dict.fromkeys(Path(each.source).name for each in study.record.priors))


def _warned(caplog: pytest.LogCaptureFixture) -> Collection[str]:
    return [each.getMessage() for each in caplog.records if '--learn_from' in each.getMessage()]


def test_the_study_with_the_most_decisions_in_common_comes_first(tmp_path: Path) -> None:
    for names in ('xyz', 'xy', 'xyzabc', 'xabcdef'):
        _search(tmp_path / 'deep' / names, names)
    with _new('xyz', StudiesBelow(tmp_path)) as study:
        # Missing decisions are not drawn: a trial that lacks some does not fit.
        assert _sources(study) == ['xyz', 'xyzabc']
        assert len(study.record.priors) == 6


def test_an_unreadable_study_is_skipped_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _search(tmp_path / 'good', 'xy')
    for name, content in (('foreign', b'hello'), ('empty', b'')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'study.db').write_bytes(content)
    with _new('xy', StudiesBelow(tmp_path)) as study:
        assert _sources(study) == ['good']
    empty, foreign = sorted(_warned(caplog))
    assert empty.startswith(f'--learn_from: {tmp_path / "empty"}/study.db cannot be opened')
    assert foreign.startswith(f'--learn_from: {tmp_path / "foreign"}/study.db cannot be opened')


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'--learn_from=.*there is no such directory'):
        _new('x', StudiesBelow(tmp_path / 'nowhere'))


def test_a_resumed_study_learns_from_what_it_learned_from(tmp_path: Path) -> None:
    _search(tmp_path / 'old', 'xy')

    def search(trials: int) -> int:
        given = COMMON | {'job_log_dir': tmp_path / 'new', 'learn_from': tmp_path}
        with tune(lambda v: v.x, space=_space('xy'), num_trials=trials, **given) as study:
            assert _sources(study) == ['old']
            return len(study.trials)

    assert search(2) == 2
    _search(tmp_path / 'later', 'xy')
    assert search(4) == 4


def test_the_latest_studies_are_looked_at_and_a_line_names_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ('a', 'b', 'c'):
        _search(tmp_path / name, 'xy')
    with _new('xy', StudiesBelow(tmp_path, max_looked_at=2)) as study:
        assert _sources(study) == ['c', 'b']
    with _new('xy', StudiesBelow(tmp_path, max_seconds=0.0)) as study:
        assert _sources(study) == []
    first, second = _warned(caplog)
    assert '1 older' in first and '3 older' in second


def test_trials_outside_of_the_ranges_are_left_out(tmp_path: Path) -> None:
    _search(tmp_path / 'wide', 'xy', trials=12, high=2.0)
    with load_study(tmp_path / 'wide') as source:
        inside = [t for t in source.trials if max(t.decisions.values()) <= 1.0]
    with _new('xy', StudiesBelow(tmp_path)) as study:
        assert len(study.record.priors) == len(inside) > 0
