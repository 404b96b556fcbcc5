"""Programs of the next trial are compiled while a trial runs, which changes no trial."""

import itertools
import threading
import types
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

import paxtune
from paxtune import search
from paxtune.engines.precompiled import Precompiled
from paxtune.running import precompiler
from paxtune.running.callbacks import Callback
from paxtune.running.precompiler import Precompiler
from tests.paxtune.tunables import Rates
from trainer.layers import FeedForward
from trainer.program.program import Program
from trainer.symbolic.errors import UserError


def _of_many_structures() -> Any:
    made = Rates()
    sizes = [8, 12, 20, 28, 36]
    made.rebind(
        {'task.model.stack.layers[0].feed_forward': FeedForward(pg.oneof(sizes))},
    )
    return made


class _Waits(Callback):
    """Lets a compilation beside a trial end within that trial."""

    def on_measurement(self, *_: Any) -> None:
        for thread in threading.enumerate():
            if thread.name == precompiler.THREAD:
                thread.join()


@pytest.fixture
def compiling(no_programs: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have compiled a train step, one name for each."""
    found: list[str] = []
    compile_step = Program._compiled

    def noted(program: Program, *args: Any) -> Any:
        found.append(threading.current_thread().name)
        return compile_step(program, *args)

    monkeypatch.setattr(Program, '_compiled', noted)
    monkeypatch.setattr(precompiler, '_FIRST', 2)
    monkeypatch.setattr(precompiler, '_SHARE', 1.0)
    monkeypatch.setattr(precompiler, 'num_threads', lambda: 2)
    return found


def run(directory: Path, **options: Any) -> list[Any]:
    with paxtune.tune(
        _of_many_structures(), job_log_dir=directory, seed=3, callbacks=[_Waits()], **options
    ) as study:
        return [(dict(trial.by_id), trial.reward) for trial in study.trials]


@pytest.mark.slow
def test_the_next_structure_is_compiled_ahead_and_trials_are_the_same(
    tmp_path: Path, compiling: list[str]
) -> None:
    ahead = run(tmp_path / 'ahead', engine=Precompiled())
    structures = {each[0]['task.model.stack.layers[0].feed_forward.hidden_dims'] for each in ahead}
    assert len(structures) > 2
    assert compiling == ['MainThread'] + [precompiler.THREAD] * (len(structures) - 1)
    assert run(tmp_path / 'plain') == ahead


def test_a_suggestion_that_is_expected_is_the_next_one_and_changes_nothing(tmp_path: Path) -> None:
    made = _of_many_structures()
    with paxtune.open_study(tmp_path, made, search=made.search) as study:
        for _ in range(4):
            trial = study.ask()
            assert trial is not None
            expected = study.expected_decisions()
            assert expected == study.expected_decisions()
            assert len(study.trials) == trial.id
            study.tell(trial, {'eval/log_pplx': 1.0})
            if trial.id < 4:
                assert expected is not None
                following = study.ask()
                assert following is not None and following.by_id == expected
                following.release('after step 0')
        assert expected is None  # The study has all of its trials.


def _steps(
    watching: Precompiler, seconds: list[float], clock: Any, study: Any, counts: Any = (1,)
) -> None:
    """Executions of `counts` steps, in turn, each of which takes so many seconds."""
    trial: Any = types.SimpleNamespace(id=1, by_id={})
    watching.on_trial_start(study, trial)
    step = 0
    for each, count in zip(seconds, itertools.cycle(counts)):
        clock.now += each * count
        step += count
        watching.on_step(study, trial, step, {})
    watching.on_trial_end(study, trial)


@pytest.mark.parametrize('counts', [(1,), (1, 8, 1, 1)])
@pytest.mark.parametrize(('beside', 'goes_on'), [(1.04, True), (1.2, False)])
def test_a_slowed_trial_is_the_last_one_with_a_compilation_beside_it(
    monkeypatch: pytest.MonkeyPatch, beside: float, goes_on: bool, counts: tuple[int, ...]
) -> None:
    clock: Any = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(precompiler, 'time', types.SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(precompiler, 'num_threads', lambda: 2)
    compiling: threading.Event = threading.Event()
    study: Any = None
    begun: list[Any] = []

    def compile_next(given: Any) -> None:
        begun.append(given)
        compiling.wait()

    monkeypatch.setattr(Precompiler, '_compile_next', lambda _, given: compile_next(given))
    monkeypatch.setattr(precompiler, 'structure', lambda *_: [])
    watching = Precompiler()
    _steps(watching, [1.0] * precompiler._FIRST + [beside] * 100, clock, study, counts)
    compiling.set()
    watching.on_study_end(study)
    _steps(watching, [1.0] * 20, clock, study, counts)
    watching.on_study_end(study)
    assert len(begun) == 1 + goes_on


def test_nothing_is_compiled_ahead_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompiler, 'num_threads', lambda: 1)
    watching = Precompiler()
    monkeypatch.setattr(threading.Thread, 'start', lambda thread: pytest.fail('a thread starts'))
    clock: Any = types.SimpleNamespace(now=0.0)
    _steps(watching, [1.0] * 20, clock, None)


@pytest.mark.slow
def test_nothing_is_compiled_ahead_where_speed_is_rewarded(
    tmp_path: Path, compiling: list[str]
) -> None:
    made = _of_many_structures()
    made.rebind({'search.objective': paxtune.MetricReward('minimize', 'spent_seconds')})
    with paxtune.tune(made, job_log_dir=tmp_path, engine=Precompiled(), callbacks=[_Waits()]):
        assert {*compiling} == {'MainThread'}


def test_functions_are_refused() -> None:
    with pytest.raises(UserError, match='--precompile is for the trials of experiments'):
        paxtune.tune(
            lambda x: x, space={'x': paxtune.intv(1, 3)}, objective='minimize', engine=Precompiled()
        )


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--pack=2'], '--precompile --pack=2: give one of both'),
        (['--workers=2'], '--precompile --workers: its trials run in the process'),
    ],
)
def test_flags_that_do_not_fit(tmp_path: Path, flags: list[str], message: str) -> None:
    exp = ['--exp=tests.paxtune.tunables.Rates', f'--job_log_dir={tmp_path}', '--precompile']
    with pytest.raises(UserError, match=message):
        search.main([*exp, *flags])
