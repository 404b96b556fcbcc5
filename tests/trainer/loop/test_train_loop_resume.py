"""Runs that are interrupted, resumed or repeated."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.factories.runs import final_state, measured, without_speed
from tests.factories.tiny import experiment
from trainer.layers import Dropout
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import UserError


@pytest.mark.pax('Positions of inputs', 'BaseInput', 'enable_input_checkpointing')
@pytest.mark.parametrize('stop_after', [1, 2])
@pytest.mark.fast(1)
@pytest.mark.contract
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(tmp_path: Path, stop_after: int) -> None:
    made = experiment(num_steps=6, task__model__dropout=Dropout(0.1), train__evaluation__every=3)
    whole = measured(made, tmp_path / 'whole')
    running = run(made, tmp_path / 'parts')
    for _ in range(stop_after):
        next(running)
    running.close()
    rest = measured(made, tmp_path / 'parts')
    assert rest[0].resumed_from > 0
    wanted = {m.step: without_speed(m) for m in whole}
    assert {m.step: without_speed(m) for m in rest} == {
        step: metrics for step, metrics in wanted.items() if step >= rest[0].step
    }
    jax.tree.map(
        np.testing.assert_array_equal,
        final_state(made, tmp_path / 'parts'),
        final_state(made, tmp_path / 'whole'),
    )
    steps = [(r['step'], 'train/loss' in r) for r in read_metrics(tmp_path / 'parts/metrics.jsonl')]
    assert steps == sorted(set(steps), key=lambda s: (s[0], not s[1]))
    assert len(steps) == 6 + 2


def test_a_relative_directory_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (got,) = measured(experiment(num_steps=1), Path('runs/job'))
    assert got.checkpoint == str(tmp_path / 'runs' / 'job' / 'checkpoints' / '1')
    assert measured(experiment(num_steps=1), Path('runs/job'))[0].resumed_from == 1


@pytest.mark.pax(12, '**Defect**: metrics of')
def test_a_finished_run_repeats_its_last_measurement(tmp_path: Path) -> None:
    first = measured(experiment(), tmp_path)
    again = measured(experiment(), tmp_path)
    assert [m.step for m in again] == [6]
    assert without_speed(again[0]) == without_speed(first[-1])


@pytest.mark.pax('Checkpoints through Orbax')
def test_an_interrupted_run_saves_and_goes_on(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match='interrupted at step 3'):
        measured(experiment(), tmp_path, should_interrupt=lambda: next(asked))
    rest = measured(experiment(), tmp_path)
    assert rest[0].resumed_from == 3
    whole = measured(experiment(), tmp_path / 'whole')
    assert without_speed(rest[-1]) == without_speed(whole[-1])


def test_a_damaged_checkpoint_is_stepped_over(tmp_path: Path) -> None:
    whole = measured(experiment(), tmp_path)
    newest = tmp_path / 'checkpoints' / '6'
    for part in newest.rglob('*'):
        if part.is_file():
            part.write_bytes(b'')
    (tmp_path / 'checkpoints' / '7').mkdir()
    rest = measured(experiment(), tmp_path)
    assert rest[0].resumed_from == 4
    assert without_speed(rest[-1]) == without_speed(whole[-1])
    assert final_state(experiment(), tmp_path).step == 6


@pytest.mark.pax('--enforce_restore_shape_check', 'Metadata: shapes, dtypes')
def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    measured(experiment(num_steps=2), tmp_path)
    other = experiment(num_steps=2, task__model__embedding__dims=32)
    with pytest.raises(UserError, match=r'of another experiment.*stored \(32, 16\)'):
        measured(other, tmp_path, allow_changes=True)


def test_checkpoints_none_of_which_can_be_read_are_not_written_over(tmp_path: Path) -> None:
    measured(experiment(num_steps=2), tmp_path)
    (tmp_path / 'checkpoints' / '2' / '_CHECKPOINT_METADATA').write_bytes(b'')
    with pytest.raises(UserError, match='No checkpoint can be read'):
        measured(experiment(num_steps=4), tmp_path)
    assert [p.name for p in (tmp_path / 'checkpoints').iterdir()] == ['2']


def test_an_interruption_between_evaluation_and_save_loses_no_metric(tmp_path: Path) -> None:
    made = experiment(num_steps=8, train__checkpoints__every=3, train__summary_interval_steps=4)
    asked = iter([False, True])
    with pytest.raises(Interrupted, match='step 2'):
        measured(made, tmp_path / 'parts', should_interrupt=lambda: next(asked))
    rest = measured(made, tmp_path / 'parts')
    whole = measured(made, tmp_path / 'whole')
    assert [without_speed(m) for m in rest] == [without_speed(m) for m in whole]
    parts, one = (
        [(r['step'], r.get('train/loss')) for r in read_metrics(tmp_path / d / 'metrics.jsonl')]
        for d in ('parts', 'whole')
    )
    assert parts == one


@pytest.mark.pax('--enable_checkpoint_saving')
def test_without_checkpoints_a_run_measures_all_and_begins_anew(tmp_path: Path) -> None:
    made = experiment(train__checkpoints=None)
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match='interrupted at step 3'):
        measured(made, tmp_path, should_interrupt=lambda: next(asked))
    assert not list((tmp_path / 'checkpoints').glob('*'))
    rest = measured(made, tmp_path)
    assert (rest[0].resumed_from, rest[-1].checkpoint) == (0, None)
    whole = measured(experiment(), tmp_path / 'whole')
    assert [without_speed(m) for m in rest] == [without_speed(m) for m in whole]


@pytest.mark.pax('Checkpoints through Orbax')
def test_no_temporary_checkpoint_is_left(tmp_path: Path) -> None:
    half = tmp_path / 'checkpoints' / '1.orbax-checkpoint-tmp'
    half.mkdir(parents=True)
    measured(experiment(num_steps=2), tmp_path)
    assert [p.name for p in (tmp_path / 'checkpoints').iterdir()] == ['2']
    shutil.rmtree(tmp_path)
