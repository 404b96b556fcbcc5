"""Progress of one run, in a terminal and elsewhere."""

import io
import signal
from pathlib import Path

import pytest
from rich.console import Console

from tests.factories.tiny import experiment
from trainer import main
from trainer.loop.train_loop import run
from trainer.runtime import step_events
from trainer.runtime.interrupt import Interrupt
from trainer.runtime.run_display import RunDisplay


def test_a_terminal_shows_compilation_then_steps_and_an_interrupt(
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, highlight=False)
    with Interrupt() as interrupt, RunDisplay(100, interrupt, console):
        console.print('one line')
        assert 'compiling' in out.getvalue()
        step_events.notify(50)
        step_events.notify(49, {'train/loss': 2.25, 'train/steps_per_second': 10.0})
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == ''
    last = 'step 50 of 100, train/loss=2.25, 10 steps/s, about 5 s left\n'
    assert last + Interrupt.MESSAGE in out.getvalue()


@pytest.mark.parametrize(
    ('seconds', 'printed'), [(0.0, 'step 2 of 100, train/loss=2.25\n'), (3600.0, '')]
)
def test_a_pipe_gets_a_line_now_and_then(seconds: float, printed: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80)
    with Interrupt() as interrupt, RunDisplay(100, interrupt, console, plain_seconds=seconds):
        step_events.notify(2, {'train/loss': 2.25})
    step_events.notify(3)
    assert out.getvalue() == printed


def test_training_prints_what_matters_and_where_the_run_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.train(experiment(num_steps=2), str(tmp_path), resume_command=[]) == 0
    printed = capsys.readouterr().out.splitlines()
    # A slow machine also prints the step now and then.
    first, measured, last, clock = (line for line in printed if ' of 2' not in line)
    assert first == f'Training to step 2 in {tmp_path}'
    names = [word.partition('=')[0] for word in measured.split()]
    assert names[:2] == ['step', '2:']
    assert 'eval/loss' in names and 'train/loss' in names and 'num_params' not in names
    assert 'train/gradient_norm' not in names
    assert last.startswith(f'Trained to step 2. In {tmp_path}: metrics.jsonl, ')
    assert clock.startswith('Wall clock of this run: ')
    assert 'Goodput: ' in clock


def test_a_run_reports_each_step_and_the_loss_between_evaluations(tmp_path: Path) -> None:
    heard: list[tuple[int, float | None]] = []
    made = experiment(num_steps=4)
    made.rebind({'train.summary_interval_steps': 2, 'train.evaluation.every': 4})
    with step_events.listening(lambda step, m: heard.append((step, m.get('train/loss')))):
        assert [report.step for report in run(made, tmp_path)] == [4]
    assert [step for step, loss in heard if loss is None] == [1, 2, 3, 4]
    assert [step for step, loss in heard if loss is not None] == [2, 4]
    assert heard.index((3, None)) > heard.index(next(each for each in heard if each[1]))
