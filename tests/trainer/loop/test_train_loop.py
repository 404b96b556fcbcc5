"""Measurements, evaluations and files of a run."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.factories.runs import measured, scalars, without_speed
from tests.factories.tiny import LENGTH, CountingInput, experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.inputs.base import Batch, EndOfData
from trainer.layers import Dropout
from trainer.loop.evaluate import evaluate
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.metrics import Metrics
from trainer.program.costs import COSTS
from trainer.program.setup import compiled, localized
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.profiling import Profiler
from trainer.runtime.step_events import listening
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text
from trainer.task import DeviceBatch
from trainer.tasks import LanguageModelTask


@pytest.mark.pax(20, 'Results come back', 'train_to_end', 'Checkpoints in a', '--job_log_dir')
@pytest.mark.pax('--eval_on_test', 'Loop: `num_train_steps`', 'report_progress_hook')
@pytest.mark.pax('Checkpoint: `save_interval_steps`, `save_max_to_keep`')
@pytest.mark.pax('Evaluation: `eval_interval_steps`', 'DefaultExecutor')
@pytest.mark.contract
def test_a_run_measures_at_its_intervals_and_at_its_end(tmp_path: Path) -> None:
    got = measured(experiment(num_steps=5), tmp_path)
    assert [m.step for m in got] == [2, 4, 5]
    names = {'loss', 'log_pplx', 'accuracy'}
    assert {f'eval/{n}' for n in names} < got[0].metrics.keys()
    names |= {'learning_rate', 'gradient_norm', 'tokens_per_second'}
    assert {f'train/{n}' for n in names} < got[0].metrics.keys()
    assert got[-1].metrics['eval/loss'] < got[0].metrics['eval/loss']
    assert got[-1].checkpoint == str(tmp_path / 'checkpoints' / '5')
    assert sorted(p.name for p in (tmp_path / 'checkpoints').iterdir()) == ['4', '5']
    assert list((tmp_path / 'summaries').glob('events.out.tfevents*'))


@pytest.mark.pax(11, 15, 'Its gaps: no warm', 'compute_steps_per_sec_interval_steps')
@pytest.mark.pax('Steps per second', 'Written at the start', 'save_interval_steps')
@pytest.mark.parametrize(('interval', 'summary_interval'), [(1, 1), (2, 4), (5, 1), (3, 4)])
@pytest.mark.fast(1)
def test_every_measurement_after_two_steps_has_costs_and_speeds(
    interval: int, summary_interval: int, tmp_path: Path
) -> None:
    made = experiment(
        num_steps=5,
        train__evaluation__every=interval,
        train__summary_interval_steps=summary_interval,
        train__checkpoints__every=2,
    )
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        measured(made, tmp_path, should_interrupt=lambda: next(asked))
    whole = measured(made, tmp_path / 'whole')
    assert all((each.checkpoint is not None) == (each.step in (2, 4, 5)) for each in whole)
    for measurement in [*whole, *measured(made, tmp_path)]:
        metrics = measurement.metrics
        assert {*COSTS, 'eval_steps_per_second'} < metrics.keys()
        if measurement.step >= measurement.resumed_from + 2:
            speeds = {name: metrics[name] for name in THROUGHPUT_METRICS if name in metrics}
            assert min(speeds.values()) > 0
            # The peak of this device is unknown, this thread has no clock, and nothing is decoded.
            unknown = {'train/mfu', 'train/goodput', 'decode_steps_per_second'}
            assert set(THROUGHPUT_METRICS) - set(speeds) == unknown
            tokens = speeds['train/steps_per_second'] * 8 * LENGTH
            assert math.isclose(speeds['train/tokens_per_second'], tokens)
    records = read_metrics(tmp_path / 'whole/metrics.jsonl')
    summaries = [each for each in records if each['step'] > 1 and 'train/loss' in each]
    assert all(each['train/steps_per_second'] > 0 for each in summaries)


@pytest.mark.slow
def test_speeds_leave_out_compiling(tmp_path: Path) -> None:
    class SlowToTrace(LanguageModelTask):
        def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
            time.sleep(0.5)
            return super().measure(outputs, batch)

    made = experiment(num_steps=2)
    made.rebind(task=SlowToTrace(made.task.model, made.task.learner))
    (got,) = measured(made, tmp_path)
    assert got.metrics['eval_steps_per_second'] > 3 / 0.5
    assert got.metrics['train/steps_per_second'] > 1 / 0.5


@pytest.mark.pax('**Defect**: `eval_loop_num_batches` is', 'BaseEvalProgram')
def test_eval_covers_the_whole_set_exactly(tmp_path: Path) -> None:
    # Batches weigh differently, so the mean over the set is not the mean of the batches.
    made = experiment(num_steps=1, task__learner__learning_rate=0.0)
    made.rebind({'eval_inputs.first': CountingInput(batch_size=8, num_eval_batches=1)})
    (got,) = measured(made, tmp_path)
    program, values = compiled(localized(made))
    state = program.init(program.random_key(0), values)
    data = localized(made).eval_inputs['eval']
    total = weight = 0.0
    eval_step = program.eval_step(data.element_spec())
    for number in range(3):
        loss = eval_step(state.variables, program.put(data.get_next()), values)['loss']
        total, weight = total + float(loss.total), weight + float(loss.weight)
        if number == 0:
            assert got.metrics['first/loss'] == total / weight
    assert got.metrics['eval/loss'] == total / weight
    assert weight == 3 * 64 - (1 + 2 + 3)


def test_inputs_are_closed_when_a_run_ends_or_is_left(tmp_path: Path) -> None:
    closed = []

    class Closing(CountingInput):
        def close(self) -> None:
            closed.append(self.is_training)

    made = experiment(
        num_steps=4,
        train_input=Closing(batch_size=8, is_training=True),
        eval_inputs={'eval': Closing(batch_size=8)},
    )
    running = run(made, tmp_path)
    next(running)
    assert not closed
    running.close()
    assert sorted(closed) == [False, True]
    measured(made, tmp_path)
    assert len(closed) == 4


@pytest.mark.pax('Batches with less', 'get_next_padded')
def test_padding_of_batches_changes_no_metric(tmp_path: Path) -> None:
    paths = ('train_input', 'eval_inputs__eval')
    padded = experiment(num_steps=2, **{f'{path}__batch_padding_size': 4 for path in paths})
    plain = measured(experiment(num_steps=2), tmp_path / 'plain')
    for got, wanted in zip(measured(padded, tmp_path / 'padded'), plain, strict=True):
        names = ('loss', 'accuracy')
        for name in [f'{of}/{name}' for of in ('train', 'eval') for name in names]:
            assert got.metrics[name] == pytest.approx(wanted.metrics[name], rel=1e-6)


@pytest.mark.pax('--enable_summary_writer')
@pytest.mark.pax('log_train_output_interval_steps', 'SummaryHandler')
def test_metrics_are_written_once_each(tmp_path: Path) -> None:
    first, _ = measured(experiment(num_steps=4), tmp_path)
    records = read_metrics(tmp_path / 'metrics.jsonl')
    assert [(r['step'], 'train/loss' in r) for r in records] == [
        (1, True), (2, True), (2, False), (3, True), (4, True), (4, False),
    ]  # fmt: skip
    # Each summary is of its own interval. The first evaluation has the mean of two of them.
    one, other = (records[i]['train/gradient_norm'] for i in (0, 1))
    both = first.metrics['train/gradient_norm']
    assert one != other and both == pytest.approx((one + other) / 2)


@pytest.mark.pax('Summaries: `summary_interval_steps`, `summary_accumulate_interval_steps`')
def test_a_summary_is_the_mean_since_the_last_one(tmp_path: Path) -> None:
    written = []
    for every in (1, 2):
        made = experiment(num_steps=4, train__summary_interval_steps=every)
        measured(made, tmp_path / str(every))
        records = read_metrics(tmp_path / str(every) / 'metrics.jsonl')
        written.append({r['step']: r['train/loss'] for r in records if 'train/loss' in r})
    each, means = written
    assert list(means) == [2, 4]
    for last, mean in means.items():
        weights = {step: 64 - step for step in (last - 1, last)}
        total = sum(each[step] * weight for step, weight in weights.items())
        assert math.isclose(mean, total / sum(weights.values()), rel_tol=1e-6)


@pytest.mark.pax('async_summary_writing')
def test_metrics_of_a_step_are_written_once_the_next_one_is_under_way(tmp_path: Path) -> None:
    told = []

    class Watching(Profiler):
        def after(self, steps: range, results: Any) -> None:
            told.append(('begun', steps[-1]))

    def listen(step: int, metrics: Mapping[str, float]) -> None:
        if metrics:
            told.append(('written', step))

    with listening(listen):
        made = experiment(num_steps=3, train__evaluation__every=3, train__checkpoints=None)
        measured(made, tmp_path, profiler=Watching())
    assert told == [
        ('begun', 1), ('begun', 2), ('written', 1), ('begun', 3), ('written', 2), ('written', 3),
    ]  # fmt: skip


@pytest.mark.pax('… `random_seed`')
def test_the_seed_of_a_run_draws_its_weights(tmp_path: Path) -> None:
    losses = []
    for number, seed in enumerate((0, 1, 1)):
        made = experiment(num_steps=1, train__random_seed=seed)
        losses.append(measured(made, tmp_path / str(number))[0].metrics['train/loss'])
    assert losses[0] != losses[1] == losses[2]


@pytest.mark.contract
def test_tensorboard_has_each_scalar_once(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        measured(experiment(), tmp_path, should_interrupt=iter([False, False, True]).__next__)
    measured(experiment(), tmp_path)
    assert scalars(tmp_path, 'train/loss') == [1, 2, 3, 4, 5, 6]
    assert scalars(tmp_path, 'eval/loss') == [2, 4, 6]


@pytest.mark.pax('BaseExperiment', '… intermediates, hyper_params')
def test_the_written_experiment_is_the_one_that_was_given(tmp_path: Path) -> None:
    made = experiment(num_steps=1)
    measured(made, tmp_path)
    assert (tmp_path / 'experiment.json').read_text() == to_json_text(made)


def test_a_vocabulary_that_does_not_suffice_is_named(tmp_path: Path) -> None:
    class Wide(CountingInput):
        vocab_size = 259

    made = experiment(eval_inputs={'wide': Wide(batch_size=8)})
    message = r'eval_inputs.wide: its vocabulary has 259 ids, but .*vocab_size is 32'
    with pytest.raises(UserError, match=message):
        measured(made, tmp_path)


@pytest.mark.pax('Metric.eval_train', 'eval_skip_train', '`eval_train`: evaluation on')
def test_the_next_training_batch_is_evaluated_and_then_trained_on(tmp_path: Path) -> None:
    fields = {'task__model__dropout': Dropout(0.5), 'train__evaluation__train_batch': True}
    made = experiment(num_steps=4, **fields)
    plain = experiment(num_steps=4, task__model__dropout=Dropout(0.5))
    got, wanted = measured(made, tmp_path / 'with'), measured(plain, tmp_path / 'without')
    for ours, theirs in zip(got, wanted, strict=True):
        metrics = without_speed(ours)
        own = {name for name in metrics if name.startswith('eval_train/')}
        assert {'eval_train/loss', 'eval_train/accuracy'} < own
        assert {k: v for k, v in metrics.items() if k not in own} == without_speed(theirs)
    program, values = compiled(localized(made))
    data = localized(made).train_input
    data.set_position({'batch': 4, 'fingerprint': data.fingerprint()})  # The position of step 5.
    restored = CheckpointStore(tmp_path / 'with/checkpoints').restore(program.abstract_state)
    assert restored is not None
    eval_step = program.eval_step(data.padded_spec())
    loss = eval_step(restored.state.variables, program.put(data.get_next()), values)['loss']
    assert got[-1].metrics['eval_train/loss'] == float(loss.total) / float(loss.weight)
    assert restored.progress.positions[0]['batch'] == 4
    # A run that resumes there repeats it.
    (again,) = measured(made, tmp_path / 'with')
    assert again.metrics['eval_train/loss'] == got[-1].metrics['eval_train/loss']
    assert scalars(tmp_path / 'with', 'eval_train/loss') == [2, 4]


def test_where_no_training_batch_is_left_none_is_evaluated(tmp_path: Path) -> None:
    class Ending(CountingInput):
        def get_next(self) -> Batch:
            if self._batch == 4:
                raise EndOfData
            return super().get_next()

    made = experiment(num_steps=4, train_input=Ending(batch_size=8, is_training=True))
    made.rebind({'train.evaluation.train_batch': True})
    asked = ['eval_train/loss' in each.metrics for each in measured(made, tmp_path)]
    assert asked == [True, False]


@pytest.mark.parametrize('name', ['train', 'eval_train'])
def test_names_of_training_metrics_are_no_names_of_evaluation_sets(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is an invalid name for a set"):
        experiment(eval_inputs={name: CountingInput(batch_size=8)})


def test_inputs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    class Missing(CountingInput):
        def prepare(self) -> None:
            raise UserError('nothing there')

    made = experiment(eval_inputs={'c4': Missing(batch_size=2)})
    with pytest.raises(UserError, match=r'eval_inputs\.c4: nothing there'):
        measured(made, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.pax('Training metrics only')
def test_train_metrics_are_means_over_the_interval(tmp_path: Path) -> None:
    got = measured(experiment(num_steps=2), tmp_path)[0].metrics
    records = [r for r in read_metrics(tmp_path / 'metrics.jsonl') if 'train/loss' in r]
    weights = [64 - 1, 64 - 2]
    mean = sum(r['train/loss'] * w for r, w in zip(records, weights, strict=True)) / sum(weights)
    assert math.isclose(got['train/loss'], mean, rel_tol=1e-6)


@pytest.mark.pax('**Defect**: metrics stand')
def test_metrics_of_a_step_are_those_of_that_step(tmp_path: Path) -> None:
    # In Pax they stand one step later.
    made = experiment(num_steps=4)
    got = {m.step: m.metrics['eval/loss'] for m in measured(made, tmp_path)}
    made = localized(made)
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    trained, evaluated = {}, {}
    for step in range(1, 5):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        trained[step] = float(metrics['loss'].mean)
        evaluated[step] = evaluate(made, program, state, values)['eval/loss']
    records = read_metrics(tmp_path / 'metrics.jsonl')
    written = {r['step']: r['train/loss'] for r in records if 'train/loss' in r}
    assert written == pytest.approx(trained, rel=1e-6)
    assert got == pytest.approx({step: evaluated[step] for step in (2, 4)}, rel=1e-6)


@pytest.mark.pax('max_inflight_steps', 'Queue of steps in')
@pytest.mark.parametrize('at_most', [0, 1, 2, 9])
def test_so_many_steps_are_under_way_and_no_more(
    at_most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, block = [], jax.block_until_ready

    def wait(results: Any) -> Any:
        waits.append(results)
        return block(results)

    monkeypatch.setattr(jax, 'block_until_ready', wait)
    made = experiment(num_steps=5, train__max_inflight_steps=at_most, train__checkpoints=None)
    measured(made, tmp_path)
    # The first step is waited for in any case; of the rest, all but those under way at the end.
    assert len(waits) == 1 + 5 - min(at_most, 2)
