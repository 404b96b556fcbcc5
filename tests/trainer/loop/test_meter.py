"""Spent resources of a run do not depend on interruptions."""

from pathlib import Path
from typing import Any

import pytest

from tests.factories.runs import measured
from tests.factories.tiny import LENGTH, CountingInput, experiment
from trainer.inputs.base import Batch
from trainer.loop.report import Interrupted, Report
from trainer.loop.train_loop import run
from trainer.program.costs import static_costs, tokens_per_step
from trainer.runtime import wall_clock
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.warm_start_rules import WarmStart

TOKENS = 8 * LENGTH


def spent(measurement: Report) -> tuple[float, float]:
    return measurement.metrics['spent_tokens'], measurement.metrics['spent_flops']


def test_each_measurement_says_what_was_spent_up_to_there(tmp_path: Path) -> None:
    made = experiment(num_steps=5)
    got = measured(made, tmp_path)
    flops = static_costs(made)['flops_per_token']
    assert [spent(each) for each in got] == [(n * TOKENS, n * TOKENS * flops) for n in (2, 4, 5)]
    seconds = [each.metrics['spent_seconds'] for each in got]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    assert 'spent_seconds' in THROUGHPUT_METRICS
    assert not {'spent_tokens', 'spent_flops'} & set(THROUGHPUT_METRICS)


def test_interruptions_change_nothing_of_it(tmp_path: Path) -> None:
    whole = measured(experiment(), tmp_path / 'whole')
    for step in (2, 3, 5):
        asked = iter([False, True])
        with pytest.raises(Interrupted, match=f'at step {step}'):
            measured(experiment(), tmp_path / 'parts', should_interrupt=asked.__next__)
    got = measured(experiment(), tmp_path / 'parts')
    assert spent(got[-1]) == spent(whole[-1])


SECONDS = [0.0]


class Timed(CountingInput):
    """A second for a batch of training, 100 for one of an evaluation, 10,000 for a save."""

    def get_next(self) -> Batch:
        SECONDS[0] += 1 if self.is_training else 100
        return super().get_next()

    def get_position(self) -> dict[str, Any]:
        SECONDS[0] += 10_000
        return super().get_position()


def test_seconds_are_those_of_steps_alone(tmp_path: Path) -> None:
    made = experiment(
        train_input=Timed(batch_size=8, is_training=True),
        eval_inputs={'eval': Timed(batch_size=8)},
    )
    asked = iter([False, False, True])
    whole = []
    with wall_clock.measuring(wall_clock.WallClock(read=lambda: SECONDS[0])):
        for each in run(made, tmp_path / 'whole'):
            whole.append(each.metrics['spent_seconds'])
            SECONDS[0] += 1_000_000
        assert whole == [1, 3, 5]  # Without the first step.
        with pytest.raises(Interrupted, match='at step 3'):
            measured(made, tmp_path / 'parts', should_interrupt=asked.__next__)
        parts = measured(made, tmp_path / 'parts')
        # The fourth step was the first of its process.
        assert [each.metrics['spent_seconds'] for each in parts] == [2, 4]
        (again,) = measured(made, tmp_path / 'parts')
    assert again.metrics['spent_seconds'] == 4


def test_resources_of_a_step_are_known_before(tmp_path: Path) -> None:
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
