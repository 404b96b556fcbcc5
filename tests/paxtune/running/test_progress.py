import io
import signal
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.running.progress import Progress, Row
from paxtune.study.record import Lineage
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.runtime.interrupt import Interrupt

DECISIONS = {'task.learner.learning_rate': 0.00123456, 'task.model.stack.repeats': 2}


def trial(number: int, decisions: Mapping[str, Any], status: str = '', reason: str = '') -> Trial:
    made = SimpleNamespace(
        id=number, decisions=decisions, lineage=Lineage(), status=status, reason=reason
    )
    return cast(Trial, made)


def study_of(done: int, num_trials: int, best: tuple[int, tuple[float, ...]] | None) -> Study:
    """A study of one objective that has ended some trials."""
    entries = [
        SimpleNamespace(
            trial=SimpleNamespace(id=number), rewards=rewards, trials=[0], standard_errors=[None]
        )
        for number, rewards in ([] if best is None else [best])
    ]
    made = SimpleNamespace(
        rewards=[MetricReward('minimize', 'eval/loss')],
        num_trials=num_trials,
        search=SimpleNamespace(algorithm=None),
        trials=[SimpleNamespace(is_terminal=True)] * done,
        leaderboard=entries,
        space=SimpleNamespace(
            is_tunable=True, short_names={path: path.rpartition('.')[2] for path in DECISIONS}
        ),
    )
    return cast(Study, made)


def show(terminal: bool, **fields: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, highlight=False, **fields)
    progress = Progress(console)
    study = study_of(1, 4, (1, (2.5,)))
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(2, DECISIONS))
    progress.on_trial_resume(study, trial(2, DECISIONS), 40)
    progress.on_measurement(study, trial(2, DECISIONS), Measurement(80, {}, (2.25,)))
    better = study_of(1, 4, (2, (2.25,)))
    progress.on_trial_end(better, trial(2, DECISIONS, 'completed'))
    progress.on_trial_start(better, trial(3, DECISIONS))
    progress.on_measurement(better, trial(3, DECISIONS), Measurement(40, {}, (9.5,)))
    progress.on_trial_end(better, trial(3, DECISIONS, 'stopped', 'worse than the median'))
    progress.on_study_end(better)
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    lines = show(terminal=False).splitlines()
    assert lines[:4] == [
        '1 of 4 trials are done',
        'trial 2/4: learning_rate=0.00123456 repeats=2',
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
    study = study_of(3, 2, (1, (2.5,)))
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(4, {}))
    progress.on_trial_end(study, trial(4, {}, 'completed'))
    assert out.getvalue().splitlines()[-1].endswith('; all trials are done')


def test_a_live_table_shows_compilation_then_steps_loss_and_speed() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=120, highlight=False))
    study = study_of(0, 4, None)
    progress.on_study_start(study)
    assert '0 of 0 trials' not in out.getvalue()
    progress.on_trial_start(study, trial(1, DECISIONS))
    progress.say('one')
    progress.on_step(study, trial(1, DECISIONS), 7, {})
    progress.on_step(study, trial(1, DECISIONS), 8, {'train/loss': 2.75})
    progress.on_step(study, trial(1, DECISIONS), 9, {'train/steps_per_second': 12.25})
    progress.on_study_end(study)
    shown = out.getvalue()
    last = shown[shown.rindex('0 of 4 trials, 4 trials left') :]
    (row,) = [line.split() for line in last.splitlines() if 'paused' in line]
    assert row == ['1', 'paused', '9', '2.75', '12.25', 'learning_rate=0.00123456', 'repeats=2']
    assert 'trials are done' not in shown


def test_an_interrupt_stays_on_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with Interrupt() as interrupt:
        console = Console(file=out, force_terminal=True, width=120, highlight=False)
        progress = Progress(console, interrupt)
        study = study_of(0, 4, None)
        progress.on_study_start(study)
        signal.raise_signal(signal.SIGINT)
        progress.on_trial_start(study, trial(1, DECISIONS))
        progress.on_study_end(study)
        assert out.getvalue().splitlines()[-2] == interrupt.MESSAGE
    # A line of its own would be overwritten by the table.
    assert capfd.readouterr().err == ''


def test_plain_lines_tell_of_steps_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    progress, study = Progress(Console(file=out, width=100)), study_of(0, 4, None)
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(1, DECISIONS))
    progress.on_step(study, trial(1, DECISIONS), 1, {})
    monkeypatch.setattr('paxtune.running.progress._PLAIN_SECONDS', 0.0)
    progress.on_step(study, trial(1, DECISIONS), 2, {'train/loss': 2.5})
    assert out.getvalue().splitlines()[1:] == ['trial 1: step 2 train/loss=2.5']


def test_trials_may_begin_while_the_table_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(Console(file=io.StringIO(), width=100))
    study = study_of(0, 9, None)
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(1, {}))
    progress.on_trial_start(study, trial(2, {}))
    numbers = iter(range(3, 9))

    def state(row: Row) -> str:
        progress.on_trial_start(study, trial(next(numbers), {}))
        return 'running'

    monkeypatch.setattr(Row, 'state', property(state, lambda row, value: None))
    assert progress._ended() == 0


def test_the_end_is_printed() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=100))
    study = study_of(0, 1, None)
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(1, {}))
    progress.on_trial_end(study, trial(1, {}, 'infeasible', 'no memory'))
    assert out.getvalue().splitlines()[-1] == 'trial 1: infeasible (no memory); all trials are done'
