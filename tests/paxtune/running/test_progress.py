import io
from typing import Any

import pytest
from rich.console import Console

from paxtune.running.progress import Progress, Row
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.paxtune.toys import toy


def empty_study() -> Study:
    return open_study(None, toy())


DECISIONS = {'task.learner.learning_rate': 0.00123456, 'task.model.stack.repeats': 2}


def show(terminal: bool, **fields: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, highlight=False, **fields)
    progress = Progress(console)
    with empty_study() as study:
        progress.on_study_start(study)
        progress.reward_names, progress.num_trials = ['eval/loss'], 4
        progress.already_done(1, (1, (2.5,)))
        progress.start(2, DECISIONS)
        progress.resume(2, 40)
        progress.measure(2, 80, (2.25,))
        progress.end(2, 'completed', '', (2, (2.25,)))
        progress.start(3, DECISIONS)
        progress.measure(3, 40, (9.5,))
        progress.end(3, 'stopped', 'worse than the median', (2, (2.25,)))
        progress.on_study_end(study)
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    lines = show(terminal=False).splitlines()
    assert lines[:4] == [
        '1 of 4 trials are done',
        'trial 2/4: learning_rate=0.00123 repeats=2',
        'trial 2: resumed from step 40',
        'trial 2: step 80 eval/loss=2.25',
    ]
    assert lines[4].startswith('trial 2: completed; best is trial 2 with eval/loss=2.25; about ')
    assert 'trial 3: stopped (worse than the median); best is trial 2' in lines[7]
    assert '\x1b' not in ''.join(lines)


def test_a_table_in_a_terminal() -> None:
    out = show(terminal=True)
    last = out[out.rindex('of 4 trials') :]
    for text in ('trial', 'state', 'step', 'eval/loss', 'decisions', 'stopped', '2.25', '9.5'):
        assert text in last
    assert 'best: trial 2, eval/loss=2.25' in last
    assert 'resumed from step 40' in out
    assert 'trial 2: step 80' not in out


def test_a_study_that_shrank_is_done() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=100))
    progress.num_trials = 2
    progress.already_done(3, (1, (2.5,)))
    progress.start(4, {})
    progress.end(4, 'completed', '', (1, (2.5,)))
    assert out.getvalue().splitlines()[-1].endswith('; all trials are done')


def test_trials_may_begin_while_the_table_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(Console(file=io.StringIO(), width=100))
    progress.num_trials = 9
    progress.start(1, {})
    progress.start(2, {})
    numbers = iter(range(3, 9))

    def state(row: Row) -> str:
        progress.start(next(numbers), {})
        return 'running'

    monkeypatch.setattr(Row, 'state', property(state, lambda row, value: None))
    assert progress._ended() == 0


def test_the_end_is_printed() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=100))
    progress.num_trials = 1
    progress.start(1, {})
    progress.end(1, 'infeasible', 'no memory', None)
    assert out.getvalue().splitlines()[-1] == 'trial 1: infeasible (no memory); all trials are done'
