import contextlib
import io
import logging
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pyglove as pg
import pytest
from rich.console import Console

from paxtune.analysis.study_poller import StudyPoller
from paxtune.analysis.study_state import StudyState
from paxtune.api import tune
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.open_study import open_study
from paxtune.study.record import Lineage
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.terminal.displays import display_for
from paxtune.terminal.live_screen import Labels
from paxtune.terminal.live_view import LiveView
from paxtune.terminal.progress import Lines, Progress
from tests.factories.function_studies import SPACE, search
from tests.factories.studies import ask
from tests.servers.terminal import final_lines
from trainer.runtime.interrupt import Interrupt

DECISIONS = {'task.learner.learning_rate': 0.00123456, 'task.model.stack.repeats': 2}


def trial(number: int, decisions: Mapping[str, Any], status: str = '', reason: str = '') -> Trial:
    made = SimpleNamespace(
        id=number, decisions=decisions, lineage=Lineage(), status=status, reason=reason
    )
    return cast(Trial, made)


def study_of(
    done: int,
    num_trials: int,
    best: tuple[int, tuple[float, ...]] | None,
    profile: Mapping[str, float] | None = None,
) -> Study:
    """A study of one objective that has ended some trials."""
    entries = [
        SimpleNamespace(
            trial=SimpleNamespace(id=number), rewards=rewards, trials=[0], standard_errors=[None]
        )
        for number, rewards in ([] if best is None else [best])
    ]
    ended = SimpleNamespace(
        is_terminal=True, lineage=Lineage(), record=SimpleNamespace(profile={'steps': 4.0})
    )
    made = SimpleNamespace(
        rewards=[MetricReward('minimize', 'eval/loss')],
        num_trials=num_trials,
        search=SimpleNamespace(algorithm=None, scheduler=None),
        trials=[ended] * done,
        record=SimpleNamespace(profile=profile or {}),
        winners=lambda count: entries[:count],
        space=SimpleNamespace(
            is_tunable=True, short_names={path: path.rpartition('.')[2] for path in DECISIONS}
        ),
    )
    return cast(Study, made)


def show() -> str:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=120, highlight=False))
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


def test_the_end_has_the_profile_of_this_search_alone() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=120, highlight=False))
    progress.on_study_start(study_of(1, 4, None))
    after = study_of(2, 4, None, {'idle': 12.0, 'cache_hits': 3})
    progress.on_study_end(after)
    assert out.getvalue().splitlines()[-1] == (
        'Wall clock of this search: 16.0 s, idle 75%, steps 25%. '
        'Goodput: 25%. Compiled programs: 0 by XLA, 3 from the cache'
    )


def test_plain_lines_where_there_is_no_terminal() -> None:
    lines = show().splitlines()
    assert lines[:4] == [
        '1 of 4 trials are done',
        'trial 2/4: learning_rate=0.00123456 repeats=2',
        'trial 2: resumed from step 40',
        'trial 2: step 80 eval/loss=2.25',
    ]
    assert lines[4].startswith('trial 2: completed; best is trial 2 with eval/loss=2.25; about ')
    assert 'trial 3: stopped (worse than the median); best is trial 2' in lines[7]
    assert '\x1b' not in ''.join(lines)


def test_a_study_that_shrank_is_done() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=100))
    study = study_of(3, 2, (1, (2.5,)))
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(4, {}))
    progress.on_trial_end(study, trial(4, {}, 'completed'))
    assert out.getvalue().splitlines()[-1].endswith('; all trials are done')


def test_plain_lines_tell_of_steps_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    progress, study = Progress(Console(file=out, width=100)), study_of(0, 4, None)
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(1, DECISIONS))
    progress.on_step(study, trial(1, DECISIONS), 1, {})
    monkeypatch.setattr('paxtune.terminal.progress._PLAIN_SECONDS', 0.0)
    progress.on_step(study, trial(1, DECISIONS), 2, {'train/loss': 2.5})
    assert out.getvalue().splitlines()[1:] == ['trial 1: step 2 train/loss=2.5']


def test_the_end_is_printed() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=100))
    study = study_of(0, 1, None)
    progress.on_study_start(study)
    progress.on_trial_start(study, trial(1, {}))
    progress.on_trial_end(study, trial(1, {}, 'infeasible', 'no memory'))
    assert out.getvalue().splitlines()[-1] == 'trial 1: infeasible (no memory); all trials are done'


# --- The screen ---


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(out: io.StringIO) -> Console:
    """A terminal of 80 columns."""
    return Console(
        file=out, force_terminal=True, force_interactive=True, width=80, height=24, highlight=False
    )


def shown(out: io.StringIO, text: str) -> None:
    """Waits until a screen has a text."""
    deadline = time.monotonic() + 20
    while text not in out.getvalue():
        assert time.monotonic() < deadline, out.getvalue()
        time.sleep(0.02)


SQUARES: dict[str, Any] = {
    'space': {'x': pg.oneof([0.5, 2.0, 3.0])},
    'objective': 'minimize',
    'algorithm': 'grid',
}


@pytest.mark.pax('Dashboards')
def test_a_terminal_keeps_a_line_for_each_trial_and_a_summary(
    out: io.StringIO, console: Console
) -> None:
    def failing(x: float) -> float:
        if x == 3.0:
            raise ValueError('x is too large')
        return x**2

    tune(failing, **SQUARES, callbacks=[Progress(console)])
    first, second, third, *rest = final_lines(out.getvalue())
    assert (first, second) == (
        'trial 1: completed, objective=0.25 (x=0.5)',
        'trial 2: completed, objective=4 (x=2)',
    )
    assert third.startswith('trial 3: infeasible (x=3): ValueError: x is too large')
    summary, _, profile = ' '.join(rest).partition(' Wall clock of this search: ')
    assert summary.endswith(
        '3 of 3 trials: 2 completed, 1 infeasible (1 failed); best: trial 1, objective=0.25'
    )
    assert 'steps' in profile and 'phase' not in profile  # One line.


def test_a_trial_that_ends_before_the_first_drawing_has_its_line(
    out: io.StringIO, console: Console
) -> None:
    has_ended, display = threading.Event(), display_for(console)
    assert display is not None
    with open_study(None, SPACE, search=search()) as study:
        poller = StudyPoller.of(study)

        def read() -> StudyState:
            if threading.current_thread() is not threading.main_thread():
                assert has_ended.wait(20)
            return poller.poll()

        view = LiveView(read, display, Labels('here'))
        view.start()
        trial = ask(study)
        trial.report(1, {'loss': 0.5})
        trial.complete()
        has_ended.set()
        view.stop()
    assert final_lines(out.getvalue())[0].startswith('trial 1: completed')


def test_a_screen_shows_steps_and_a_curve_of_running_trials(
    out: io.StringIO, console: Console
) -> None:
    def falling(x: float) -> Iterator[dict[str, float]]:
        for step in range(1, 5):
            yield {'loss': x / step}
        shown(out, '█')
        assert re.search(r'\n1 +4 +0\.125 +█[▁-█]{2}▁ ', out.getvalue())

    objective = MetricReward('minimize', 'loss')
    tune(falling, space={'x': pg.oneof([0.5])}, objective=objective, callbacks=[Progress(console)])
    assert final_lines(out.getvalue())[1] == 'trial 1: completed, loss=0.125 (x=0.5)'


def test_a_screen_shows_the_loss_and_speed_of_steps_before_a_measurement(
    out: io.StringIO, console: Console
) -> None:
    progress = Progress(console)
    with open_study(None, SPACE, search=search()) as study:
        progress.on_study_start(study)
        running = ask(study)
        progress.on_trial_start(study, running.view)
        progress.on_step(study, running.view, 7, {'train/loss': 2.75})
        progress.on_step(study, running.view, 8, {'train/steps_per_second': 12.25})
        shown(out, '2.75')
        progress.on_study_end(study)
    row = next(line.split() for line in out.getvalue().splitlines() if '2.75' in line)
    assert row[:2] == ['1', '8'] and '12.2' in row


def test_an_interrupt_is_shown_on_the_screen(
    out: io.StringIO, console: Console, capfd: pytest.CaptureFixture[str]
) -> None:
    with Interrupt() as interrupt, open_study(None, SPACE, search=search()) as study:
        progress = Progress(console, interrupt)
        progress.on_study_start(study)
        signal.raise_signal(signal.SIGINT)
        shown(out, interrupt.MESSAGE)
        progress.on_study_end(study)
    # A line of its own would be overwritten by the screen.
    assert capfd.readouterr().err == ''


def test_an_error_of_the_screen_ends_only_the_screen(
    out: io.StringIO, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    class Defect(Interrupt):
        def requested(self) -> bool:
            raise KeyError('a defect')

    def slow(x: float) -> float:
        deadline = time.monotonic() + 20
        while 'x1b[?25h' not in repr(out.getvalue()):  # The cursor is shown again.
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return x

    study = tune(slow, **SQUARES, callbacks=[Progress(console, Defect())])
    assert len(study.trials) == 3
    message = "The live view has failed; the search continues. KeyError: 'a defect'\n"
    assert capsys.readouterr().out == message
    lines = final_lines(out.getvalue())
    last = next(before for before, line in pairwise(lines) if line.startswith('Wall clock'))
    assert last.startswith('trial 3: completed; best is trial 1 with objective=0.5')


def test_a_script_on_a_pipe_has_a_line_for_each_trial() -> None:
    def train(x: float) -> float:
        if x == 2.0:
            raise ValueError('a bug')
        return x

    written = io.StringIO()
    tune(train, **SQUARES, callbacks=[Lines(Console(file=written, width=200))])
    lines = [re.sub(r' \([^()]*\.py:\d+\)', '', line) for line in written.getvalue().splitlines()]
    best = 'best is trial 1 with objective=0.5'
    assert [line.partition('; about')[0] for line in lines] == [
        f'trial 1/3: x=0.5 → objective=0.5; {best}',
        f'trial 2/3: x=2 → infeasible (ValueError: a bug); {best}',
        f'trial 3/3: x=3 → objective=3; {best}; all trials are done',
    ]


@pytest.mark.parametrize(('seconds', 'count'), [(0.0, 120), (60.0, 101)])
def test_lines_of_a_large_study_are_apart(seconds: float, count: int) -> None:
    written = io.StringIO()
    lines = Lines(Console(file=written, width=200), seconds)
    space = {'x': pg.oneof(range(120))}
    tune(lambda x: x, space=space, objective='minimize', algorithm='grid', callbacks=[lines])
    found = written.getvalue().splitlines()
    assert len(found) == count
    assert found[-1].startswith('trial 120/120: x=119 → objective=119; best is trial 1 with')
    assert found[-1].endswith('; all trials are done')


def test_tune_on_a_pipe_prints_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tune(lambda x: x, **SQUARES)
    out, err = capsys.readouterr()
    assert out == '' and 'trial 3/3: x=' in err
    silent: list[dict[str, Any]] = [{'callbacks': []}, {'quiet': True}]
    for each in silent:
        tune(lambda x: x, **SQUARES, **each)
        assert capsys.readouterr() == ('', '')


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_of_trials_and_logs_is_above_the_screen(out: io.StringIO, console: Console) -> None:
    errors = TerminalText()
    handler = logging.StreamHandler(errors)  # Keeps the stream, as absl's does.
    logger = logging.getLogger('tests.a_library')
    logger.addHandler(handler)

    def talking(x: float) -> float:
        print('a print of a trial')
        logger.warning('a log of a library')
        return x

    try:
        with contextlib.redirect_stderr(errors):
            tune(talking, **SQUARES, callbacks=[Progress(console)])
        assert handler.stream is errors
    finally:
        logger.removeHandler(handler)
    lines = final_lines(out.getvalue())
    assert lines.count('a print of a trial') == lines.count('a log of a library') == 3
    assert sum(line.startswith('trial ') for line in lines) == 3
    assert errors.getvalue() == ''
