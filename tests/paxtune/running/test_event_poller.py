"""A search with workers listens to their trials."""

import time
from collections.abc import Mapping
from pathlib import Path

import pyglove as pg

from paxtune import Threads, tune
from paxtune.running.callbacks import Callback
from paxtune.running.event_poller import Watcher
from paxtune.storage.open_study import open_study
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from tests.factories.studies import ask
from tests.factories.tunables import Rates
from trainer.runtime.metric_writer import MetricWriter


class Steps(Callback):
    def __init__(self) -> None:
        self.heard: list[tuple[int, int, float | None]] = []

    def on_step(self, study: Study, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        self.heard.append((trial.id, step, metrics.get('train/loss')))


def test_steps_of_workers_are_read_from_their_metrics(tmp_path: Path) -> None:
    steps = Steps()
    with open_study(tmp_path, Rates(), {'train_input': 'counting'}) as study:
        watcher = Watcher(study, [steps])
        trial = ask(study)
        watcher.look()
        directory = attempt_directory(tmp_path, trial.view)
        directory.mkdir(parents=True)
        writer = MetricWriter(directory, 0)
        for step in range(2000):
            writer.write(step, {'train/loss': 2.5})
        writer.write(2000, {'train/loss': 2.25})
        for _ in range(2):
            watcher.look()
        writer.write(2000, {'eval/loss': 2.125})
        with (directory / 'metrics.jsonl').open('a') as file:
            file.write('{"step": 2001, "train/lo')
        watcher.look()
        writer.close()
    assert steps.heard == [(1, 2000, 2.25)]


def test_a_file_of_metrics_that_a_function_writes_is_its_own(tmp_path: Path) -> None:
    def writing(trial: RunningTrial) -> float:
        assert trial.directory is not None
        Path(trial.directory, 'metrics.jsonl').write_text('{"epoch": 1, "train/loss": 0.5}\n')
        time.sleep(0.5)  # Longer than between two looks.
        return 1.0

    steps = Steps()
    space = {'x': pg.oneof([1, 2])}
    with tune(
        lambda x, trial: writing(trial),
        space=space,
        objective='minimize',
        engine=Threads(2),
        job_log_dir=tmp_path,
        callbacks=[steps],
    ) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2
    assert steps.heard == []
