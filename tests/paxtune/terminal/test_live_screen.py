"""The screen of a running study, against those in `screens/live/`.

`PAXTUNE_WRITE_SCREENS=1 python -m pytest tests/paxtune/terminal/test_live_screen.py` writes them.
"""

import dataclasses
import datetime
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.analysis.study_state import StudyState, TrialProgress, bare_trials
from paxtune.objectives.measurement import Measurement
from paxtune.study.record import Event, RunTime, Status, StudyRecord, TrialRecord
from paxtune.study.trial import Trial
from paxtune.terminal.live_screen import Labels, Size, screen, sparkline, summary_line
from trainer.runtime.interrupt import Interrupt

SCREENS = Path(__file__).parent / 'screens' / 'live'
START = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)
SPEC = pg.to_json_str(pg.dna_spec(pg.floatv(0.0, 1.0)))
STUDY = StudyRecord(
    value='{}', search='{"budget": {"trials": 16}, "replicates": 1}', spec=SPEC, data={},
    goals=('minimize',),
)  # fmt: skip
DECISIONS = 'learning_rate=0.00{} layer=TransformerBlock(heads=[4]) widths=[16, 32]'


def describe(trial: Trial) -> str:
    if trial.is_terminal:
        return 'learning_rate=0.00123 layer=Dense(16)'
    return DECISIONS.format(trial.id)


LABELS = Labels('runs/2026-11-language-models/lm.StdlibTunable', ['eval/loss'], describe)


def at(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def ended(number: int, status: Status, **fields: Any) -> TrialRecord:
    made = TrialRecord({}, number, status, created=START, ended=at(number), run_time=RunTime(63.0))
    return dataclasses.replace(made, **fields)


def completed(number: int, loss: float) -> TrialRecord:
    return ended(number, Status.COMPLETED, final=Measurement(1, {}, (loss,)))


def event(seconds: float, name: str, detail: str = '') -> tuple[Event]:
    return (Event(at(seconds), name, 1, detail=detail),)


def running(number: int, **fields: Any) -> TrialProgress:
    """A trial that has trained for a while."""
    rewards = tuple(4.0 / (number + step) for step in range(1, 20))
    record = TrialRecord(
        {}, number, Status.ACTIVE, created=START, holder=f'vm-{number:08x}',
        measurements=(Measurement(1, {}, rewards[-1:]),),
        history=event(60, 'claimed') if number == 7 else (),
    )  # fmt: skip
    if not fields.get('curve', rewards):
        record = dataclasses.replace(record, measurements=())
    (trial,) = bare_trials(STUDY, [record])
    made = TrialProgress(
        trial, 'running', 100 * number, rewards, 12.34, {'train/loss': 2.53125}, at(90)
    )
    return dataclasses.replace(made, **fields)


def state(count: int = 3) -> StudyState:
    """A study of 16 trials; the last of those that run has not begun to train."""
    worse = event(55, 'ended', 'stopped: the reward is worse than the median of 3 trials')
    broken = event(50, 'ended', 'infeasible: XlaRuntimeError: out of memory')
    records = [
        completed(1, 3.0),
        completed(2, 2.25),
        ended(3, Status.STOPPED, history=worse),
        ended(4, Status.INFEASIBLE, history=broken, is_failed=True),
        completed(5, 4.0),
        ended(6, Status.STOPPED),
    ]
    trials = [running(7 + index) for index in range(count - 1)]
    last = running(6 + count, state='starting', step=0, curve=(), speed=None, training={})
    trials.append(last)
    known = [*bare_trials(STUDY, records), *(each.trial for each in trials)]
    return StudyState(STUDY, known, START, at(90), trials)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv('TZ', 'UTC')
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


CASES = {
    '80x24': (state(), Size(80, 24), ''),
    '120x24': (state(), Size(120, 24), ''),
    '80x24-interrupted': (state(), Size(80, 24), Interrupt.MESSAGE),
    '80x24-ascii': (state(), Size(80, 24, is_ascii=True), ''),
    '80x24-of-40-trials': (state(40), Size(80, 24), ''),
    '80x10': (state(8), Size(80, 10), ''),
    '80x6': (state(8), Size(80, 6), ''),
    '60x24-interrupted': (state(), Size(60, 24), Interrupt.MESSAGE),
    '60x12-of-40-trials': (state(40), Size(60, 12), ''),
    '40x24': (state(), Size(40, 24), ''),
}


@pytest.mark.parametrize('name', CASES)
def test_screens_are_those_of_the_files(name: str) -> None:
    shown, size, notice = CASES[name]
    text = screen(shown, LABELS, size, notice).plain
    path = SCREENS / f'{name}.txt'
    if os.environ.get('PAXTUNE_WRITE_SCREENS'):
        path.write_text(text + '\n')
    assert text + '\n' == path.read_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= size.width
    assert len(lines) <= size.height


@pytest.mark.parametrize('height', range(1, 24))
def test_a_screen_is_never_higher_than_the_terminal(height: int) -> None:
    lines = screen(state(9), LABELS, Size(80, height), 'a notice').plain.splitlines()
    assert len(lines) <= height
    assert '6 of 16 trials' in '\n'.join(lines[:2])


@pytest.mark.parametrize('height', [14, 24])
def test_the_trial_that_runs_is_the_first(height: int) -> None:
    paused = [running(number, state='paused') for number in (10, 11, *range(13, 33))]
    trials = [*paused[:2], running(12), *paused[2:], running(33, state='waiting')]
    known = StudyState(STUDY, [each.trial for each in trials], START, at(90), trials)
    lines = screen(known, LABELS, Size(80, height), '').plain.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith('trial '))
    numbers = [line.split()[0] for line in lines[heading + 1 :] if line.split()[:1] != ['and']]
    assert numbers[:2] == ['12', '33']
    assert numbers[2:] == sorted(numbers[2:]) and numbers[-1] == '32'
    assert f'and {24 - len(numbers)} other trials' in lines


def test_text_of_a_study_moves_no_cursor() -> None:
    evil = Labels('a\x1b[2J\rb', ['\x1b[1m'], lambda trial: '\x1b]0;x\x07')
    text = screen(state(), evil, Size(80, 24)).plain
    assert '\x1b' not in text and '\r' not in text and '\x07' not in text


def test_a_screen_of_a_search_without_rewards_has_its_trials() -> None:
    measured = running(7, curve=())
    record = dataclasses.replace(STUDY, goals=())
    only = StudyState(record, [measured.trial], START, at(90), [measured])
    lines = screen(only, Labels('here', []), Size(80, 24)).plain.splitlines()
    assert any(line.split()[:2] == ['7', '700'] for line in lines)


def test_a_sparkline_has_the_first_and_the_last_value() -> None:
    values = [float(value) for value in range(100)]
    assert sparkline(values, 8) == '▁▂▃▄▅▆▇█'
    assert sparkline(values[::-1], 8, is_ascii=True) == '#*+=-:._'
    assert sparkline([2.0, 2.0], 8) == '▁▁'
    assert sparkline([1e308, math.nan, -1e308, math.inf], 8) == '█▁'
    assert sparkline([], 8) == ''


def test_a_summary_has_counts_and_the_best_trial() -> None:
    assert summary_line(state(), LABELS) == (
        '6 of 16 trials: 3 completed, 2 stopped, 1 infeasible (1 failed), 3 active; '
        'best: trial 2, eval/loss=2.25'
    )
