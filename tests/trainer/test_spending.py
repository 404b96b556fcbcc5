"""What a run has spent: the same however often it was interrupted."""

import time
from pathlib import Path

import pytest

from tests.trainer.test_loop import measured
from tests.trainer.tiny import LENGTH, CountingInput, experiment
from trainer.costs import static_costs, tokens_per_step
from trainer.inputs.base import Batch
from trainer.loop import Interrupted, Measurement, run
from trainer.speed import SPEEDS, Speed
from trainer.spending import SPENT, Spending
from trainer.warm_start_rules import WarmStart

TOKENS = 8 * LENGTH


def spent(measurement: Measurement) -> tuple[float, float]:
    return measurement.metrics['spent_tokens'], measurement.metrics['spent_flops']


def test_each_measurement_says_what_was_spent_up_to_there(tmp_path: Path) -> None:
    made = experiment(num_steps=5)
    got = measured(made, tmp_path)
    flops = static_costs(made)['flops_per_token']
    assert [spent(each) for each in got] == [(n * TOKENS, n * TOKENS * flops) for n in (2, 4, 5)]
    seconds = [each.metrics['spent_seconds'] for each in got]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    assert 'spent_seconds' in SPEEDS
    assert not {'spent_tokens', 'spent_flops'} & set(SPEEDS)


def test_interruptions_change_nothing_of_it(tmp_path: Path) -> None:
    whole = measured(experiment(), tmp_path / 'whole')
    for step in (2, 3, 5):
        asked = iter([False, True])
        with pytest.raises(Interrupted, match=f'at step {step}'):
            measured(experiment(), tmp_path / 'parts', should_interrupt=asked.__next__)
    got = measured(experiment(), tmp_path / 'parts')
    assert spent(got[-1]) == spent(whole[-1])


def test_seconds_go_on_where_they_were(tmp_path: Path) -> None:
    class Slow(CountingInput):
        def get_next(self) -> Batch:
            time.sleep(0.1)
            return super().get_next()

    made = experiment(num_steps=4, train_input=Slow(batch_size=8, is_training=True))
    running = run(made, tmp_path)
    first = next(running).metrics['spent_seconds']
    # That of the first step does not count, nor does what whoever listens takes.
    assert 0.1 <= first < 0.9
    time.sleep(1)
    assert first + 0.2 <= next(running).metrics['spent_seconds'] < first + 1
    running.close()
    (again,) = measured(made, tmp_path)
    assert first + 0.2 <= again.metrics['spent_seconds'] < first + 1


def test_evaluation_and_saves_take_none(tmp_path: Path) -> None:
    class SlowEvaluation(CountingInput):
        def get_next(self) -> Batch:
            time.sleep(0 if self.is_training else 0.3)
            return super().get_next()

    made = experiment(num_steps=4, eval_inputs={'eval': SlowEvaluation(batch_size=8)})
    assert measured(made, tmp_path)[-1].metrics['spent_seconds'] < 0.9


def test_what_each_step_adds_is_known_before(tmp_path: Path) -> None:
    made = experiment(num_steps=2, train_input__batch_padding_size=8)
    (got,) = measured(made, tmp_path)
    assert 2 * tokens_per_step(made) == got.metrics['spent_tokens'] == 2 * 16 * LENGTH
    assert tokens_per_step(experiment()) == TOKENS


def test_a_warm_start_spends_its_own_unless_it_counts_the_steps_of_its_source(
    tmp_path: Path,
) -> None:
    before = measured(experiment(num_steps=2), tmp_path / 'source')[-1].metrics
    source = str(tmp_path / 'source' / 'checkpoints')
    for load_step, tokens in ((False, 4 * TOKENS), (True, (2 + 2) * TOKENS)):
        start = WarmStart(source, load_step=load_step)
        made = experiment(num_steps=4, train__init_from_checkpoint=[start])
        after = measured(made, tmp_path / f'warm {load_step}')[-1].metrics
        assert after['spent_tokens'] == tokens
        assert (after['spent_seconds'] > before['spent_seconds']) or not load_step


def test_the_clock_stands_still_before_the_first_step() -> None:
    speed = Speed()
    spending = Spending(speed)
    assert spending.metrics(2.0) == dict.fromkeys(SPENT, 0.0)
    speed.start()
    speed.count(8)
    spending.count(8)
    speed.start()
    seconds = speed.total_seconds()
    assert 0 < seconds == speed.total_seconds()
    again = Spending(Speed(), spending.to_json())
    assert again.metrics(2.0) == dict(zip(SPENT, (8.0, 16.0, seconds), strict=True))
