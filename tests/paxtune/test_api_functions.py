"""`paxtune.tune` of a function."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.schedulers import MedianStopping
from paxtune.storage.open_study import load_study
from paxtune.study.trial import Trial
from tests.factories.function_studies import SPACE, run, two
from tests.factories.studies import states
from tests.factories.toys import LOSS
from trainer.symbolic.errors import UserError


def test_a_function_is_tuned(tmp_path: Path) -> None:
    study = tune(
        lambda values: abs(values.x - 3),
        space={'x': pg.oneof([1, 2, 3, 4])},
        objective='minimize',
        job_log_dir=tmp_path,
    )
    with study:
        assert study.best is not None
        assert study.best.decisions == {'x': 3}
        assert sorted(trial.reward or 0.0 for trial in study.trials) == [0.0, 1.0, 1.0, 2.0]
    with load_study(tmp_path) as loaded:
        assert loaded.best is not None
        assert loaded.best.reward == 0.0


@pytest.mark.pax('`early_stopping`')
def test_a_function_may_take_the_trial_and_be_stopped_early() -> None:
    def function(values: Any, trial: Trial) -> Iterator[dict[str, float]]:
        for step in range(1, 4):
            yield {'loss': values.x / step, 'trial': trial.id}

    with tune(
        function,
        space=SPACE,
        num_trials=6,
        objective=LOSS,
        scheduler=MedianStopping(min_trials=2),
    ) as study:
        stopped = [trial for trial in study.trials if trial.stop_reason is not None]
        assert stopped
        assert all(trial.metrics['trial'] == trial.id for trial in study.trials)


def test_a_function_must_return_numbers() -> None:
    study = run(lambda values: 'good', budget=Budget(1))
    assert 'the function must return a number or metrics by name' in str(study.trials[0].reason)


def test_a_function_that_returns_nothing_is_an_error_of_its_trial() -> None:
    study = run(lambda values: None, budget=Budget(1))
    assert study.trials[0].is_failed
    assert 'must return a number or metrics by name, not None' in str(study.trials[0].reason)


def test_values_are_passed_by_name_where_the_function_names_them() -> None:
    space = {'x': pg.oneof([1, 2]), 'y': pg.oneof([5, 6])}

    def named(x: int, *, y: int = 0) -> int:
        return 10 * x + y

    def with_trial(trial: Trial, x: int, y: int) -> int:
        assert trial.decisions == {'x': x, 'y': y}
        return 10 * x + y

    def as_one(x: Any, trial: Trial) -> int:
        return 10 * int(x.x) + int(x.y)

    for function in (named, with_trial, as_one):
        with tune(function, space=space, objective='minimize') as study:
            assert sorted(trial.reward or 0.0 for trial in study.trials) == [15, 16, 25, 26]


def test_an_algorithm_and_a_scheduler_may_be_names() -> None:
    with tune(
        lambda x: x,
        space={'x': pg.floatv(0.0, 1.0)},
        num_trials=2,
        objective='minimize',
        algorithm='random_search',
        scheduler='median',
    ) as study:
        assert study.search.algorithm == RandomSearch()
        assert study.search.scheduler == MedianStopping()


@pytest.mark.parametrize(
    ('named', 'message'),
    [
        ({'algorithm': 'randomm'}, r"^algorithm='randomm': expected one of .*random_search"),
        (
            {'scheduler': 'asha'},
            r"^scheduler='asha': write 'Asha\(min_resource=…, max_resource=…\)'",
        ),
    ],
)
def test_a_name_without_a_component_is_refused(named: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tune(lambda x: x, space={'x': pg.floatv(0.0, 1.0)}, objective='minimize', **named)


def test_a_function_listens_to_the_end_of_each_trial() -> None:
    heard = []
    with tune(
        lambda x: x,
        space={'x': pg.oneof([1, 2])},
        objective='minimize',
        callbacks=[lambda study, trial: heard.append((repr(study), trial.reward))],
    ):
        assert sorted(heard) == [('Study(in memory)', 1), ('Study(in memory)', 2)]


def test_an_interrupted_study_in_memory_is_returned_and_continued() -> None:
    calls = []

    def interrupted(x: float) -> float:
        calls.append(x)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return x

    fields: Any = {'space': {'x': pg.floatv(0.0, 1.0)}, 'objective': 'minimize', 'seed': 3}
    first = tune(interrupted, num_trials=6, **fields)
    assert first.interrupted
    assert [trial.state for trial in first.trials[:3]] == ['COMPLETED'] * 3
    undisturbed = tune(lambda x: x, num_trials=6, **fields)
    with undisturbed, tune(interrupted, study=first) as study:
        assert not study.interrupted
        for one, other in zip(study.trials, undisturbed.trials, strict=True):
            assert (one.decisions, one.reward) == (other.decisions, other.reward)
        with tune(interrupted, study=study, num_trials=8) as longer:
            assert len(longer.trials) == 8


def test_an_interrupt_says_where_a_study_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(x: float) -> float:
        signal.raise_signal(signal.SIGINT)
        return x

    fields: Any = {'space': {'x': pg.oneof([1, 2])}, 'objective': 'minimize'}
    with pytest.raises(KeyboardInterrupt):
        tune(interrupted, job_log_dir=tmp_path, **fields)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        f"Interrupted. The study is saved: tune(…, job_log_dir='{tmp_path}') continues it."
    )


@pytest.mark.parametrize('is_on_disk', [True, False])
def test_a_second_ctrl_c_has_a_line_of_its_own(
    is_on_disk: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def interrupted(x: float) -> float:
        calls.append(x)
        if len(calls) == 2:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
        return x

    fields: Any = {'space': {'x': pg.oneof([1, 2])}, 'objective': 'minimize', 'quiet': True}
    fields |= {'job_log_dir': tmp_path} if is_on_disk else {}
    with contextlib.suppress(KeyboardInterrupt):
        fields = {'study': tune(interrupted, **fields)}
    lines = capfd.readouterr().err.split('\n')
    assert lines[0] == ''
    if is_on_disk:
        saved = f"The study is saved: tune(…, job_log_dir='{tmp_path}') continues it."
        assert lines[1:] == [f'Stopped at once. {saved}', '']
    else:
        assert lines[1] == 'Stopped at once.'
        assert lines[2].startswith('Interrupted after 2 trials. The program goes on')
    with tune(interrupted, **fields) as study:
        assert states(study) == ['COMPLETED'] * 2


def test_only_a_study_in_memory_is_continued_by_itself(tmp_path: Path) -> None:
    fields: Any = {'space': {'x': pg.oneof([1, 2])}, 'objective': 'minimize'}
    with tune(lambda x: x, job_log_dir=tmp_path, **fields) as on_disk:
        pass
    with tune(lambda x: x, **fields) as in_memory:
        with pytest.raises(UserError, match=r'^study: Study\(.* must be in memory'):
            tune(lambda x: x, study=on_disk)
        with pytest.raises(UserError, match=r'^study: Study\(.* has its own space'):
            tune(lambda x: x, study=in_memory, **fields)


class Anything(pg.Object):
    """A symbolic class that is no component."""

    x: int


def test_a_study_in_memory_takes_values_of_any_symbolic_class(tmp_path: Path) -> None:
    space = {'f': pg.oneof([Anything(1), Anything(2)])}
    with tune(lambda v: v.f.x, space=space, objective='minimize') as study:
        assert study.best is not None
        assert study.best.reward == 1
    with pytest.raises(UserError, match=r'must derive from trainer\.Component'):
        tune(lambda v: v.f.x, space=space, objective='minimize', job_log_dir=tmp_path / 'study')


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ({'objective': 'min'}, "expected 'minimize', 'maximize' or a reward"),
        ({'space': [pg.oneof([1, 2])]}, 'expected a dict or a symbolic object'),
        ({'budge': 1}, 'Did you mean budget'),
        ({'space': {'x': pg.floatv(0.0, 1.0)}}, 'num_trials'),
        ({'space': None}, 'a function with arguments needs one'),
    ],
)
def test_options_that_a_function_cannot_use_are_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    fields: dict[str, Any] = {'space': {'x': pg.oneof([1, 2])}, 'objective': 'minimize'} | given
    with pytest.raises(UserError, match=message):
        tune(lambda values: values.x, job_log_dir=tmp_path / 'study', **fields)
    assert not (tmp_path / 'study').exists()


def test_a_study_that_is_read_cannot_be_written(tmp_path: Path) -> None:
    tune(two, space=SPACE, objective=LOSS, num_trials=1, job_log_dir=tmp_path).close()
    with load_study(tmp_path) as study, pytest.raises(UserError, match='read_only=False'):
        study.add({'x': 1})
