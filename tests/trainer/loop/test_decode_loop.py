"""Decoding in a run: what is written, what is measured, what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.factories import tiny
from tests.servers.processes import all_passed, job
from trainer.decoding import BeamSearch, Greedy, Sample
from trainer.experiment import Decoding, Experiment
from trainer.inputs.base import Batch
from trainer.loop.checkpoint_jobs import process_each, process_one
from trainer.loop.train_loop import run
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.symbolic.errors import UserError

DECODED = 6
"""Tokens of a row after its first three."""


def decoding(**overrides: Any) -> Experiment:
    """Learns to count, and then goes on from the first three numbers of a row."""
    fields: dict[str, Any] = {
        'task__decoder': Greedy(DECODED, prompt_length=3),
        'decode_inputs': {'test': tiny.CountingInput(batch_size=8, num_eval_batches=2)},
        'train__decoding': Decoding(2),
    }
    return tiny.experiment(**(fields | overrides))


def lines(job_log_dir: Path, step: int) -> list[dict[str, Any]]:
    text = (job_log_dir / f'decode_out/test/step_{step:09d}.jsonl').read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope='module')
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    job_log_dir = tmp_path_factory.mktemp('learned')
    experiment = decoding(num_steps=150, task__learner__learning_rate=0.02)
    experiment.rebind({'train.evaluation.every': 50, 'train.decoding.every': 100})
    return job_log_dir, list(run(experiment, job_log_dir))


@pytest.mark.pax('decode_datasets')
@pytest.mark.slow
def test_texts_are_written_down_with_what_is_known_of_them(learned: Any) -> None:
    job_log_dir, _ = learned
    examples = lines(job_log_dir, 150)
    assert [example['number'] for example in examples] == list(range(1, 17))
    for example in examples:
        *_, last = map(int, example['prompt'].split())
        wanted = [(last + 1 + i) % tiny.VOCAB for i in range(DECODED)]
        assert example['target'] == ' '.join(map(str, wanted))
        (text,) = example['texts']
        assert text['ids'] == wanted
        assert text['text'] == example['target']
        assert example['is_right'] is True
        assert text['log_prob'] == text['score'] < 0


@pytest.mark.pax('Metric.eval_scoring', '--decode_during_train')
@pytest.mark.pax('SingleTaskDecodeProgram')
@pytest.mark.slow
def test_decoding_is_measured_where_it_is_due_and_at_the_end(learned: Any) -> None:
    job_log_dir, measurements = learned
    decoded = {m.step: m.metrics for m in measurements if 'decode_test/exact_match' in m.metrics}
    assert list(decoded) == [100, 150]
    assert decoded[150]['decode_test/exact_match'] == 1.0
    assert decoded[150]['decode_test/num_decoded'] == 16
    assert decoded[150]['decode_test/decoded_length'] == DECODED
    assert decoded[150]['decode_test/log_prob'] > decoded[100]['decode_test/log_prob']
    assert decoded[150]['decode_steps_per_second'] > 0
    assert 'decode_steps_per_second' in THROUGHPUT_METRICS
    written = [r['step'] for r in read_metrics(job_log_dir / 'metrics.jsonl') if decoding_in(r)]
    assert written == [100, 150]
    assert [path.name for path in sorted((job_log_dir / 'decode_out/test').iterdir())] == [
        'step_000000100.jsonl',
        'step_000000150.jsonl',
    ]


def decoding_in(record: Mapping[str, Any]) -> bool:
    return 'decode_test/log_prob' in record


@pytest.mark.pax('Decode: seed, profiler')
@pytest.mark.slow
def test_a_run_that_resumes_writes_the_same(tmp_path: Path) -> None:
    experiment = decoding(task__decoder=Sample(DECODED, prompt_length=3, num_samples=2))
    whole = list(run(experiment, tmp_path / 'whole'))
    running = run(experiment, tmp_path / 'parts')
    first = next(running)
    running.close()
    parts = [first, *run(experiment, tmp_path / 'parts')]
    of_steps = {m.step: m.metrics['decode_test/log_prob'] for m in parts}
    assert of_steps == {m.step: m.metrics['decode_test/log_prob'] for m in whole}
    assert lines(tmp_path / 'whole', 6) == lines(tmp_path / 'parts', 6)
    assert len(lines(tmp_path / 'whole', 6)[0]['texts']) == 2


@pytest.mark.pax('`--mode`: decode, decode_once', '--restore_checkpoint_dir', 'decode, decode_once')
@pytest.mark.pax('decode_datasets')
def test_a_checkpoint_can_be_decoded_from_afterwards(tmp_path: Path) -> None:
    made = decoding()
    metrics = {m.step: m.metrics for m in run(made, tmp_path)}
    for asked, step in ((None, 6), (4, 4)):
        written = lines(tmp_path, step)
        (tmp_path / f'decode_out/test/step_{step:09d}.jsonl').unlink()
        told: dict[int, dict[str, float]] = {}
        process_one('decode', made, tmp_path, told.__setitem__, asked)
        assert list(told) == [step]
        name = 'decode_test/log_prob'
        assert told[step][name] == metrics[step][name]
        assert lines(tmp_path, step) == written


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    list(run(decoding(), tmp_path))
    with pytest.raises(UserError, match='there is no readable checkpoint of step 5'):
        process_one('decode', decoding(), tmp_path, lambda step, metrics: None, step=5)
    bare = decoding(decode_inputs={})
    with pytest.raises(UserError, match='decode_inputs: there is nothing to decode'):
        process_one('decode', bare, tmp_path, lambda step, metrics: None)


def test_a_job_decodes_from_each_checkpoint(tmp_path: Path) -> None:
    made = decoding(train__decoding=None, train__checkpoints__keep=9)
    list(run(made, tmp_path))
    told: dict[int, dict[str, float]] = {}
    process_each('decode', made, tmp_path, told.__setitem__)
    assert list(told) == [2, 4, 6]
    records = read_metrics(tmp_path / 'jobs/decode/metrics.jsonl')
    name = 'decode_test/log_prob'
    assert [r[name] for r in records] == [metrics[name] for metrics in told.values()]
    assert len(lines(tmp_path, 2)) == 16


@pytest.mark.slow
def test_texts_are_those_of_the_averaged_weights(tmp_path: Path) -> None:
    experiment = decoding(task__learner__ema_decay=0.5)
    (*_, averaged) = run(experiment, tmp_path / 'ema')
    (*_, plain) = run(decoding(), tmp_path / 'plain')
    name = 'decode_test/log_prob'
    assert averaged.metrics['train/loss'] == plain.metrics['train/loss']
    assert averaged.metrics[name] != plain.metrics[name]


def many() -> Experiment:
    """With beams, and batches that divide over eight devices."""
    made = decoding(task__decoder=BeamSearch(DECODED, prompt_length=3, beam_size=2))
    for path in ('train_input', 'eval_inputs.eval', 'decode_inputs.test'):
        made.rebind({f'{path}.batch_size': 16})
    return made


@pytest.mark.slow
def test_several_devices_and_processes_write_the_same(tmp_path: Path) -> None:
    mesh = ('--set', 'mesh.data=4', 'mesh.tensor=2')
    flags = 'trainer.main', '--exp=tests.trainer.loop.test_decode_loop.many'
    (last,) = [m for m in run(many(), tmp_path / 'one') if m.step == 6]
    for name, processes in (('devices', 1), ('processes', 2)):
        where = tmp_path / name
        ended = job(
            *flags,
            f'--job_log_dir={where}',
            *mesh,
            processes=processes,
            devices=8 // processes,
        )
        all_passed(ended)
        record = read_metrics(where / 'metrics.jsonl')[-1]
        wanted = last.metrics['decode_test/num_decoded']
        assert record['decode_test/num_decoded'] == processes * wanted
    one, devices = (lines(tmp_path / name, 6) for name in ('one', 'devices'))
    for mine, other in zip(one, devices, strict=True):
        assert [text['ids'] for text in mine['texts']] == [text['ids'] for text in other['texts']]
        assert mine['texts'][0]['score'] == pytest.approx(other['texts'][0]['score'], rel=1e-4)
    # CountingInput has no shares: each process reads all, and what it reads stands side by side.
    both = lines(tmp_path / 'processes', 6)
    assert [example['number'] for example in both] == list(range(1, 65))
    prompts = {example['prompt'] for example in one}
    assert {example['prompt'] for example in both} == prompts


@pytest.mark.pax('decode_interval_steps', 'Metric.eval_scoring')
def test_decoding_begins_at_its_start_step(tmp_path: Path) -> None:
    measurements = run(decoding(train__decoding__start=3), tmp_path)
    assert [m.step for m in measurements if decoding_in(m.metrics)] == [4, 6]


@pytest.mark.pax('decode_interval_steps')
def test_decoding_has_an_interval_of_its_own(tmp_path: Path) -> None:
    measurements = run(decoding(train__decoding__every=4), tmp_path)
    assert [m.step for m in measurements if decoding_in(m.metrics)] == [4, 6]


def test_nothing_is_decoded_while_training_unless_asked(tmp_path: Path) -> None:
    measurements = list(run(decoding(train__decoding=None), tmp_path))
    assert not any(decoding_in(m.metrics) for m in measurements)
    assert not (tmp_path / 'decode_out').exists()


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        ({'task__decoder': None}, r'decode_inputs\.test: there is no task\.decoder'),
        ({'task__decoder': Greedy(4)}, r'decode_inputs\.test: .* set task\.decoder\.prompt_length'),
    ],
)
def test_undecodable_inputs_are_refused(
    tmp_path: Path, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        next(run(decoding(**overrides), tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()


def test_impossible_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match=r'decoding.every \(3\) must be a multiple of'):
        decoding(train__decoding__every=3)
    with pytest.raises(ValueError, match="decode_inputs: 'a/b' is an invalid name for a set"):
        decoding(decode_inputs={'a/b': tiny.CountingInput(batch_size=8)})
    with pytest.raises(ValueError, match="eval_inputs: 'decode_test' is an invalid name for a set"):
        decoding(eval_inputs={'decode_test': tiny.CountingInput(batch_size=8)})


class Unweighted(tiny.CountingInput):
    def get_next(self) -> Batch:
        batch = super().get_next()
        return {**batch, 'weights': 0 * batch['weights']}


def test_a_set_whose_examples_are_all_padding_is_refused(tmp_path: Path) -> None:
    data = Unweighted(batch_size=8, num_eval_batches=1)
    made = decoding(num_steps=2, decode_inputs={'test': data})
    with pytest.raises(UserError, match=r'decode_inputs\.test: no label has a weight, so all are'):
        list(run(made, tmp_path))
