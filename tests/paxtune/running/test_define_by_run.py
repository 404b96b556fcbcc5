"""Functions that make their decisions themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.running.define_by_run import traced
from paxtune.storage.open_study import load_study
from paxtune.study.study import Study
from tests.factories.tunables import rates
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


def nested() -> dict[str, float]:
    kind = pg.oneof([lambda: pg.floatv(0.0, 1.0, name='rate'), 2], name='kind')
    count = sum(1 for _ in range(intv(1, 4, name='count')))
    first, second = pg.manyof(2, [5, 6, 7], name='pair')
    return {'objective': kind + count, 'kind': kind, 'count': count, 'pair': 10 * first + second}


def run(function: Any, **fields: Any) -> Study:
    return tune(function, objective='minimize', algorithm='random_search', **fields)


@pytest.mark.pax('In-code hypers, with')
def test_decisions_in_a_function_are_its_space(tmp_path: Path) -> None:
    with run(nested, num_trials=12, job_log_dir=tmp_path) as study:
        for trial in study.trials:
            chosen = trial.decisions
            assert trial.metrics['count'] == chosen['count']
            assert trial.metrics['pair'] == 10 * chosen['pair[0]'] + chosen['pair[1]']
            rate = chosen.get('kind.rate')
            assert trial.metrics['kind'] == (2 if rate is None else rate)
        assert {'kind.rate' in trial.decisions for trial in study.trials} == {False, True}
    with run(nested, num_trials=13, job_log_dir=tmp_path) as study:
        assert len(study.trials) == 13


def test_a_space_may_be_the_result_of_a_trace() -> None:
    def function() -> int:
        first, second = pg.oneof([1, 2], name='x'), pg.oneof([3, 4], name='y')
        return first * second

    decisions = [trial.decisions for trial in run(function).trials]
    space = pg.hyper.trace(function)
    assert [trial.decisions for trial in run(function, space=space).trials] == decisions
    by_name = run(lambda x, y: x * y, space=pg.hyper.trace(function))
    assert [trial.decisions for trial in by_name.trials] == decisions


class Model:
    """Its instances can be called, and the class is passed."""

    def __call__(self, x: float) -> float:
        return x


def test_a_function_without_parameters_takes_no_other_space() -> None:
    def own() -> int:
        return pg.oneof([1, 2], name='x')

    space = {'x': pg.oneof([1, 2])}
    assert len(run(own, space=space).trials) == 2
    cases: list[Any] = [(own, {'y': pg.oneof([1, 2])}), (lambda: 1.0, space), (Model, space)]
    for function, given in cases:
        with pytest.raises(UserError, match=r'has no parameters and makes .*, and the space has '):
            run(function, space=given)


def test_unnamed_decisions_are_numbered_and_generators_decide_before_they_yield() -> None:
    calls = []

    def function() -> Iterator[float]:
        x = pg.oneof([1, 2])
        y = pg.oneof([10, 20])
        calls.append((x, y))
        for step in (2, 1):
            yield step * (x + y)

    with run(function) as study:
        found = [trial.decisions for trial in study.trials]
        assert calls[0] == (1, 10) and len(calls) == 5
        assert calls[1:] == [(each['decision_0'], each['decision_1']) for each in found]
        assert [trial.reward for trial in study.trials] == [x + y for x, y in calls[1:]]
        assert all(len(trial.measurements) == 2 for trial in study.trials)


def test_an_error_or_signal_of_the_first_choices_is_not_hidden() -> None:
    def skips() -> float:
        if (x := pg.oneof([1, 2], name='x')) == 1:
            raise SkipTrial('too small')
        return float(x)

    with run(skips) as study:
        assert {trial.reason for trial in study.trials} == {'too small', None}

    def breaks() -> float:
        x: int = pg.oneof([1, 2])
        return 1 / (x - 1)

    with pytest.raises(ZeroDivisionError):
        run(breaks)
    with pytest.raises(UserError, match='There is nothing to search'):
        run(lambda: 1.0)


def test_a_function_that_makes_an_experiment_is_refused() -> None:
    def made() -> Any:
        return rates()

    with pytest.raises(UserError, match=r'what: made returns a Tunable: write made\(\)'):
        run(made)


def test_decisions_that_depend_on_others_must_be_nested() -> None:
    def branches() -> float:
        if pg.oneof(['a', 'b'], name='kind') == 'a':
            return float(pg.oneof([1, 2], name='x'))
        return 0.0

    with run(branches) as study:
        reasons = {trial.reason for trial in study.trials if trial.is_failed}
        assert len(reasons) == 2
        assert all('depends on another as pg.oneof([lambda' in str(reason) for reason in reasons)


def test_a_trial_has_a_directory(tmp_path: Path) -> None:
    def writes(x: int, trial: Any) -> int:
        (trial.directory / 'state.txt').write_text(str(x))
        return x

    space = {'x': pg.oneof([1, 2])}
    run(writes, space=space, job_log_dir=tmp_path).close()
    with load_study(tmp_path) as study:
        for trial in study.trials:
            assert trial.directory is not None
            assert trial.directory.parent == tmp_path / 'trials'
            assert (trial.directory / 'state.txt').read_text() == str(trial.decisions['x'])
    with run(lambda x: x, space=space) as in_memory:
        assert in_memory.trials[0].directory is None


def test_tracing_leaves_no_context_behind() -> None:
    assert list(traced(nested)) == ['kind', 'count', 'pair']
    assert isinstance(pg.floatv(0.0, 1.0), pg.hyper.Float)
