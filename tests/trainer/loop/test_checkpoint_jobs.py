"""Evaluation beside a run: `--mode=eval` and `--mode=eval_once`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.factories.runs import scalars
from tests.servers.processes import ROOT, command, environment, passed
from tests.trainer.checkpoints.test_checkpoint_watcher import saving_each_step, says
from trainer.checkpoints.end_marker import ended
from trainer.loop.checkpoint_jobs import process_each
from trainer.loop.train_loop import run
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import UserError

_JOB = 'jobs/eval'


def evaluated(directory: Path) -> dict[int, float]:
    """The losses by step, as the job has written them."""
    records = read_metrics(directory / _JOB / 'metrics.jsonl')
    losses = {record['step']: record['eval/loss'] for record in records}
    assert len(losses) == len(records)
    return losses


@pytest.mark.pax('`--mode`: eval')
def test_each_checkpoint_is_evaluated_as_the_run_does(tmp_path: Path) -> None:
    made = saving_each_step(train__evaluation__every=1)
    says(tmp_path, 'eval', -1, 0.0)
    wanted = {each.step: each.metrics['eval/loss'] for each in run(made, tmp_path)}
    told: dict[int, dict[str, float]] = {}
    process_each('eval', made, tmp_path, told.__setitem__)
    assert {step: metrics['eval/loss'] for step, metrics in told.items()} == wanted
    assert evaluated(tmp_path) == wanted
    assert scalars(tmp_path, 'eval/loss', 'summaries/eval') == [1, 2, 3, 4, 5, 6]


@pytest.mark.pax('Skips what is done')
def test_metrics_written_before_a_kill_are_written_once(tmp_path: Path) -> None:
    made = saving_each_step()
    says(tmp_path, 'eval', -1, 0.0)
    list(run(made, tmp_path))
    process_each('eval', made, tmp_path, lambda step, metrics: None)
    before = evaluated(tmp_path)
    # As where the job was killed between the two.
    (tmp_path / _JOB / 'progress.json').write_text(json.dumps({'done': 4, 'alive': None}))
    told: dict[int, dict[str, float]] = {}
    process_each('eval', made, tmp_path, told.__setitem__)
    assert list(told) == [5, 6]
    assert evaluated(tmp_path) == before


def test_an_experiment_without_evaluation_sets_is_refused(tmp_path: Path) -> None:
    made = saving_each_step(eval_inputs={})
    with pytest.raises(UserError, match='eval_inputs: there is nothing to evaluate on'):
        process_each('eval', made, tmp_path, lambda step, metrics: None)
    assert not list(tmp_path.iterdir())


# --- Processes ---


class Beside:
    """An evaluation job that runs beside the test."""

    def __init__(self, directory: Path, kill: str | None = None) -> None:
        killer = ['tests.servers.killer', kill] if kill else []
        flags = [*_flags(directory), '--mode=eval']
        self._out = directory.with_name(f'{directory.name}-{time.monotonic_ns()}.out')
        with self._out.open('w') as out:
            self._process = subprocess.Popen(
                [sys.executable, '-m', *killer, 'trainer.main', *flags],
                env=environment(),
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, text: str) -> None:
        """Waits until it has printed something."""
        for _ in range(1200):
            if text in self._out.read_text():
                return
            assert self._process.poll() is None, self._out.read_text()
            time.sleep(0.1)
        raise TimeoutError(self._out.read_text())

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def ended(self) -> tuple[int, str]:
        """Its exit code, once it has ended, and what it printed."""
        return self._process.wait(timeout=300), self._out.read_text()

    def __enter__(self) -> 'Beside':
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def _flags(directory: Path) -> list[str]:
    fields = ('checkpoints.every=1', 'checkpoints.keep=1', 'evaluation.every=1')
    values = [f'train.{field}' for field in fields]
    return [
        '--exp=tests.factories.real_input_experiments.Text',
        f'--job_log_dir={directory}',
        '--set',
        *values,
    ]


@pytest.mark.pax('Goes on in the middle')
@pytest.mark.slow
def test_a_job_that_is_killed_and_goes_on_loses_no_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / 'run'
    directory.mkdir()
    with Beside(directory, kill='eval:4') as first:
        first.wait_for('waiting for checkpoints in')
        passed(command('trainer.main', *_flags(directory)))
        code, told = first.ended()
    assert code == -signal.SIGKILL, told
    assert list(evaluated(directory)) == [1, 2, 3]
    mark: Any = ended(directory)
    assert mark['step'] == 12
    with Beside(directory) as second:
        code, told = second.ended()
    assert code == 0, told
    assert [line.split()[1] for line in told.splitlines()] == [f'{n}:' for n in range(4, 13)]
    records = read_metrics(directory / 'metrics.jsonl')
    assert evaluated(directory) == {r['step']: r['eval/loss'] for r in records if 'eval/loss' in r}


@pytest.mark.slow
def test_a_signal_ends_a_waiting_job_at_once(tmp_path: Path) -> None:
    with Beside(tmp_path / 'run') as job:
        job.wait_for('waiting for checkpoints in')
        job.signal(signal.SIGTERM)
        began = time.monotonic()
        code, told = job.ended()
    assert code == 143, told
    assert time.monotonic() - began < 5
    assert 'Stopped. The same command continues from here.' in told
