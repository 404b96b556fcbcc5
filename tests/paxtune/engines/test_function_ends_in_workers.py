"""The end of a function in a worker is that of its trial: its exit codes have no other meaning."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyglove as pg
import pytest

from paxtune import Faults, Grid
from paxtune.api import tune
from paxtune.engines.workers import Workers
from paxtune.running.worker_line import WorkerLine
from paxtune.study.study import Study
from tests.factories.ending_functions import WAYS, ends
from tests.servers.processes import ROOT, environment

_WORKER = """
import sys, threading
from paxtune.running.worker_line import SUPERVISED, exit_now
SUPERVISED.begin(75)
SUPERVISED.leaving.wait()
assert not sys.stdin.read()
if sys.argv[1] == 'report':
    exit_now(3)
threading.Event().wait()
"""


def started(line: WorkerLine, how: str) -> 'subprocess.Popen[bytes]':
    process = subprocess.Popen(
        [sys.executable, '-c', _WORKER, how], stdin=line.stdin, env=environment(), cwd=ROOT
    )
    line.started(process)
    return process


def test_a_worker_reports_its_end_and_hears_of_that_of_its_supervisor() -> None:
    line = WorkerLine()
    with started(line, 'report') as process:
        assert line.reported() is None
        line.ask_to_leave()
        assert process.wait(timeout=60) == 3
        assert line.reported() == line.reported() == 3
    line.close()
    line = WorkerLine()
    with started(line, 'wait') as process:
        line.ask_to_leave()
        line.close()
        assert process.wait(timeout=60) == 75
    assert line.reported() is None


def run(directory: Path) -> Study:
    return tune(
        ends,
        space={'way': pg.oneof([*WAYS])},
        objective='minimize',
        algorithm=Grid(),
        engine=Workers(1),
        faults=Faults(max_attempts=1, max_consecutive_failures=99),
        job_log_dir=directory,
    )


@pytest.mark.slow(reason='five workers end with their trials, and one that has ended is killed')
def test_every_end_of_a_function_is_that_of_its_trial(tmp_path: Path) -> None:
    with run(tmp_path) as study:
        reasons = {str(trial.decisions['way']): trial.reason for trial in study.trials}
        assert len(reasons) == len(study.trials) == len(WAYS)
        completed = [way for way, reason in reasons.items() if reason is None]
        assert completed == ['returns', 'leaves']
        for way in ('sys.exit(0)', 'sys.exit(130)', 'interrupt', 'cancelled', 'input'):
            assert 'ending_functions.py:' in str(reasons[way])
        for code in (0, 2, 75, 76, 143):
            assert reasons[f'os._exit({code})'] == f'its worker ended with exit code {code}'
        child = int(study.trials[-1].metrics['child'])
    try:
        run(tmp_path).close()  # The process that the last trial has left holds no lock.
    finally:
        os.kill(child, signal.SIGKILL)
