import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.runs import measured
from tests.factories.tiny import CountingInput, experiment
from trainer.decoding import Greedy
from trainer.experiment import Decoding, Experiment
from trainer.learner import NormMetrics
from trainer.loop.metric_names import certain_names, metric_names
from trainer.runtime.throughput import THROUGHPUT_METRICS


class Scored(CountingInput):
    """An evaluation set with metrics of its own."""

    wants_scores = True


def rich() -> Experiment:
    return experiment(
        num_steps=2,
        train__evaluation__train_batch=True,
        task__learner__norm_metrics=NormMetrics(each_gradient=True),
        task__learner__ema_decay=0.9,
    )


def test_the_names_are_those_that_a_run_measures(tmp_path: Path) -> None:
    names, more = metric_names(rich())
    assert not more
    assert names - {*THROUGHPUT_METRICS} == measured(rich(), tmp_path)[-1].metrics.keys() - {
        *THROUGHPUT_METRICS
    }


def test_names_that_are_certain_without_a_trace_are_measured() -> None:
    assert 'train/loss' in certain_names(rich()) < metric_names(rich())[0]


def test_names_that_the_data_determine_are_open() -> None:
    made = experiment(
        num_steps=2,
        eval_inputs={'eval': CountingInput(batch_size=8), 'own': Scored(batch_size=8)},
        decode_inputs={'test': CountingInput(batch_size=8)},
        train__decoding=Decoding(2),
        task__decoder=Greedy(4, prompt_length=2),
    )
    names, more = metric_names(made)
    assert more == {'own/', 'decode_test/'}
    assert {'eval/loss', 'own/loss', 'train/loss'} < names


@pytest.mark.slow
def test_no_device_is_used() -> None:
    # The process that starts workers leaves the memory of the devices to them.
    code = (
        'from jax._src import xla_bridge\n'
        'from tests.factories.tiny import experiment\n'
        'from trainer.loop.metric_names import metric_names\n'
        'metric_names(experiment())\n'
        'assert not xla_bridge.backends_are_initialized()'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
