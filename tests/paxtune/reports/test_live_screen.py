"""The screen of a running study, against those in `screens/live/`.

`PAXTUNE_WRITE_SCREENS=1 python -m pytest tests/paxtune/reports/test_live_screen.py` writes them.
"""

import dataclasses
import datetime
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paxtune.reports.live_screen import Size, screen, sparkline, summary_line
from paxtune.reports.overview import Overview, bare_trials
from paxtune.reports.study_snapshot import (
    Running,
    StudySnapshot,
    TrialEvent,
    last_events,
    seconds_left,
)
from paxtune.study.record import Event, Status, StudyRecord, TrialRecord
from trainer.runtime.interrupt import Interrupt

SCREENS = Path(__file__).parent / 'screens' / 'live'
START = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)
STUDY = StudyRecord(value='{}', search='{}', spec='', data={}, goals=('minimize',))


def at(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def running(number: int, **fields: object) -> Running:
    """A trial that has trained for a while."""
    rewards = tuple(4.0 / (number + step) for step in range(1, 20))
    made = Running(
        number=number, state='running', worker=f'vm-{number:08x}', attempt=1, step=100 * number,
        rewards=rewards[-1:], curve=rewards, speed=12.34, event='claimed',
        decisions=f'learning_rate=0.00{number} layer=TransformerBlock(heads=[4]) widths=[16, 32]',
        training={'train/loss': 2.53125}, began=at(60), since=at(90),
    )  # fmt: skip
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def snapshot(count: int = 3) -> StudySnapshot:
    """A study of 16 trials; the last of those that run has not begun to train."""
    overview = Overview(
        experiment='lm.StdlibTunable', num_trials=16, best=2.25, best_trial=2, front=None,
        counts={Status.COMPLETED: 3, Status.STOPPED: 2, Status.INFEASIBLE: 1, Status.ACTIVE: 3},
        created=START, is_done=False,
    )  # fmt: skip
    first = 7
    trials = [running(first + index) for index in range(count - 1)]
    last = running(
        first + count - 1, state='starting', step=0, rewards=(), curve=(), speed=None, training={}
    )
    events = [
        TrialEvent(at(50), 4, 'ended', 'infeasible: XlaRuntimeError: out of memory'),
        TrialEvent(at(55), 3, 'ended', 'stopped: the reward is worse than the median of 3 trials'),
        TrialEvent(at(60), 7, 'claimed', ''),
    ]
    return StudySnapshot(
        where='runs/2026-11-language-models/lm.StdlibTunable', reward_names=['eval/loss'],
        overview=overview, running=[*trials, last], events=events, ended_lines=[], failed=1,
        best_decisions='learning_rate=0.00123 layer=Dense(16)', seconds_left=200.0,
        is_to_pause=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv('TZ', 'UTC')
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


CASES = {
    '80x24': (snapshot(), Size(80, 24), ''),
    '120x24': (snapshot(), Size(120, 24), ''),
    '80x24-interrupted': (snapshot(), Size(80, 24), Interrupt.MESSAGE),
    '80x24-ascii': (snapshot(), Size(80, 24, is_ascii=True), ''),
    '80x24-of-40-trials': (snapshot(40), Size(80, 24), ''),
    '80x10': (snapshot(8), Size(80, 10), ''),
    '80x6': (snapshot(8), Size(80, 6), ''),
    '40x24': (snapshot(), Size(40, 24), ''),
}


@pytest.mark.parametrize('name', CASES)
def test_screens_are_those_of_the_files(name: str) -> None:
    state, size, notice = CASES[name]
    text = screen(state, size, notice).plain
    path = SCREENS / f'{name}.txt'
    if os.environ.get('PAXTUNE_WRITE_SCREENS'):
        path.write_text(text + '\n')
    assert text + '\n' == path.read_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= size.width
    assert len(lines) <= size.height


@pytest.mark.parametrize('height', range(1, 24))
def test_a_screen_is_never_higher_than_the_terminal(height: int) -> None:
    lines = screen(snapshot(9), Size(80, height), 'a notice').plain.splitlines()
    assert len(lines) <= height
    assert '6 of 16 trials' in '\n'.join(lines[:2])


def test_text_of_a_study_moves_no_cursor() -> None:
    evil = dataclasses.replace(snapshot(), where='a\x1b[2J\rb', best_decisions='\x1b]0;x\x07')
    text = screen(evil, Size(80, 24)).plain
    assert '\x1b' not in text and '\r' not in text and '\x07' not in text


def test_a_screen_of_a_search_without_rewards_has_its_trials() -> None:
    measured = [running(7, rewards=(), curve=())]
    overview = dataclasses.replace(snapshot().overview, best=None, best_trial=None)
    only = dataclasses.replace(snapshot(), reward_names=(), running=measured, overview=overview)
    lines = screen(only, Size(80, 24)).plain.splitlines()
    assert any(line.split()[:2] == ['7', '700'] for line in lines)


def test_a_sparkline_has_the_first_and_the_last_value() -> None:
    values = [float(value) for value in range(100)]
    assert sparkline(values, 8) == '▁▂▃▄▅▆▇█'
    assert sparkline(values[::-1], 8, is_ascii=True) == '#*+=-:._'
    assert sparkline([2.0, 2.0], 8) == '▁▁'
    assert sparkline([1e308, math.nan, -1e308, math.inf], 8) == '█▁'
    assert sparkline([], 8) == ''


def test_a_summary_has_counts_and_the_best_trial() -> None:
    assert summary_line(snapshot()) == (
        '6 of 16 trials: 3 completed, 2 stopped, 1 infeasible (1 failed), 3 active; '
        'best: trial 2, eval/loss=2.25'
    )


def record(number: int, **fields: object) -> TrialRecord:
    events = tuple(Event(at(10 * number + i), name, 1) for i, name in enumerate(('a', 'b')))
    made = TrialRecord(
        {}, number, Status.COMPLETED, created=START, ended=at(number), seconds=30.0, history=events
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def test_the_last_events_of_all_trials_are_in_order_of_time() -> None:
    trials = bare_trials(STUDY, [record(3), record(1), record(2)])
    found = [(each.trial, each.event) for each in last_events(trials, 3)]
    assert found == [(2, 'b'), (3, 'a'), (3, 'b')]


def test_the_time_left_is_that_of_the_last_trials_and_of_those_that_run() -> None:
    ended = bare_trials(STUDY, [record(1, seconds=1e6), *(record(n) for n in range(2, 22))])
    alone = [running(30, began=at(100))]
    assert seconds_left(ended, alone, 10, at(110)) == 10 * 30 - 10
    both = [*alone, running(31, began=at(0))]
    assert seconds_left(ended, both, 10, at(110)) == (10 * 30 - 10 - 30) / 2
    assert seconds_left(ended, [running(31, worker='')], 10, at(110)) is None
    assert seconds_left([], alone, 10, at(110)) is None
