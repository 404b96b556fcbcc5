"""`paxtune.studies pareto`: trials by two numbers, as a table, as a page and as a picture."""

import contextlib
import json
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.analysis.trade_off import Axis, Front, Point, front_of
from paxtune.config.budget import Budget
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.plots.pareto import figure_of, title
from paxtune.reports.pareto_plot import drawn, to_html, to_png
from paxtune.storage.open_study import open_study
from paxtune.studies.__main__ import main as studies
from paxtune.study.study import Study
from tests.factories.studies import ask, read_csv
from tests.factories.toys import LOSS, search, toy
from trainer.symbolic.errors import UserError

TWO = Objectives([LOSS, MetricReward('maximize', 'accuracy')])
THREE = Objectives(
    [LOSS, MetricReward('maximize', 'accuracy'), MetricReward('minimize', 'seconds')]
)
REWARDS = {'none': None, 'loss': LOSS, 'two': TWO, 'three': THREE}
_RNG = random.Random(7)
MEASURED = [
    {
        'loss': round(_RNG.random(), 1),
        'accuracy': round(_RNG.random(), 1),
        'seconds': _RNG.random(),
        'num_params': float(_RNG.randrange(100, 2000, 100)),
    }
    for _ in range(12)
]


def fill(study: Study, measured: list[dict[str, float]]) -> Study:
    for metrics in measured:
        trial = ask(study)
        trial.report(1, metrics)
        trial.complete()
    return study


def study_of(measured: list[dict[str, float]], **fields: Any) -> Study:
    fields = {'budget': Budget(len(measured) + 3)} | fields
    return fill(open_study(None, toy(search=search(**fields))), measured)


@pytest.fixture(scope='module')
def searched() -> Iterator[dict[Any, Study]]:
    """A study for each reward, of the same trials."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(study_of(MEASURED, objective=reward))
            for name, reward in REWARDS.items()
        }


def beaten(signs: dict[str, int], measured: list[dict[str, float]]) -> set[int]:
    """The numbers of the trials that another one beats, by the definition."""

    def beats(a: dict[str, float], b: dict[str, float]) -> bool:
        differences = [sign * (a[name] - b[name]) for name, sign in signs.items()]
        return min(differences) >= 0 and max(differences) > 0

    return {i for i, b in enumerate(measured, start=1) if any(beats(a, b) for a in measured)}


# --- Which trials ---


@pytest.mark.parametrize(
    ('reward', 'x', 'y', 'signs'),
    [
        ('loss', None, None, {'num_params': -1, 'loss': -1}),
        ('loss', 'seconds', None, {'seconds': -1, 'loss': -1}),
        ('loss', '+accuracy', 'reward', {'accuracy': 1, 'loss': -1}),
        ('loss', 'accuracy', 'loss', {'accuracy': -1, 'loss': -1}),
        ('loss', None, '+accuracy', {'num_params': -1, 'accuracy': 1}),
        ('two', None, None, {'loss': -1, 'accuracy': 1}),
        ('two', 'accuracy', None, {'accuracy': 1, 'loss': -1}),
        ('two', None, 'loss', {'accuracy': 1, 'loss': -1}),
        ('two', 'num_params', 'accuracy', {'num_params': -1, 'accuracy': 1}),
        ('three', 'seconds', 'loss', {'seconds': -1, 'loss': -1}),
        ('none', 'num_params', '+accuracy', {'num_params': -1, 'accuracy': 1}),
    ],
)
def test_nothing_beats_what_is_on_the_front(
    searched: dict[str, Study], reward: str, x: str | None, y: str | None, signs: dict[str, int]
) -> None:
    study = searched[reward]
    found = front_of(study, x, y)
    assert [found.x.name, found.y.name] == list(signs)
    assert {point.trial for point in found.others} == beaten(signs, MEASURED)
    assert 0 < len(found.best) < len(found.points) == len(MEASURED)
    assert [point.x for point in found.points] == sorted(point.x for point in found.points)
    for point in found.points:
        measured = MEASURED[point.trial - 1]
        assert [point.x, point.y] == [measured[name] for name in signs]
        assert point.decisions == study.trial(point.trial).decisions
    if reward == 'two' and 'num_params' not in signs:
        assert {p.trial for p in found.best} == {t.id for t in study.pareto_front}


def test_only_completed_trials_with_both_numbers_are_there() -> None:
    with study_of([{'loss': 0.5, 'num_params': 10.0}, {'loss': 0.4}]) as study:
        trial = ask(study)
        trial.report(1, {'loss': 0.1, 'num_params': 1.0})
        trial.stop('worse than others')
        ask(study).fail('no memory')
        ask(study).report(1, {'loss': 0.0, 'num_params': 1.0})
        assert [point.trial for point in front_of(study).points] == [1]


def test_repeats_are_one_trial_with_what_is_to_be_expected() -> None:
    losses = (0.1, 0.3, 0.25, 0.26)
    measured = [{'loss': loss, 'num_params': 1.0 + i} for i, loss in enumerate(losses)]
    with study_of(measured, replicates=2, budget=Budget(4)) as study:
        found = front_of(study)
        assert [point.x for point in found.points] == [1.5, 3.5]
        assert [point.y for point in found.points] == [
            -entry.scores[0]
            for entry in sorted(study.leaderboard, key=lambda each: each.configuration.first.id)
        ]


@pytest.mark.parametrize(
    ('reward', 'x', 'y', 'message'),
    [
        ('loss', 'latency', None, r"--x=latency: 'latency' is not measured"),
        ('loss', 'seconds', 'acuracy', r"--y=acuracy: 'acuracy' is not .* Did you mean accuracy"),
        ('loss', 'loss', None, '--x=loss: the other axis is the same'),
        ('two', '+accuracy', 'accuracy', 'the other axis is the same'),
        ('two', 'num_params', None, r'the study has 2 rewards \(loss, accuracy\): name both'),
        ('three', None, None, r'the study has 3 rewards \(loss, accuracy, seconds\): name both'),
        ('none', 'num_params', None, r'the study has 0 rewards \(none\): name both'),
    ],
)
def test_axes_that_say_too_little_are_refused(
    searched: dict[str, Study], reward: str, x: str | None, y: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        front_of(searched[reward], x, y)


# --- As tables ---


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp('fronts')
    open_study(directory / 'empty', toy()).close()
    fill(open_study(directory / 'one', toy(search=search(budget=Budget(12)))), MEASURED).close()
    return directory


def test_the_front_as_a_table(made: Path, shown: Callable[..., str]) -> None:
    on_front = {*range(1, 13)} - beaten({'num_params': -1, 'loss': -1}, MEASURED)
    heading, *rows, _, remark = shown('pareto', made / 'one').splitlines()
    assert heading.split()[:4] == ['trial', 'num_params', 'loss', 'decisions']
    assert {int(row.split()[0]) for row in rows} == on_front
    assert [float(row.split()[1]) for row in rows] == sorted(float(r.split()[1]) for r in rows)
    assert remark == (
        f'{len(on_front)} of 12 completed trials are on the front of num_params (minimize), '
        'loss (minimize).'
    )
    content = json.loads(shown('pareto', made / 'one', '--format=json'))
    assert content['x'] == {'name': 'num_params', 'goal': 'minimize'}
    assert {row['trial'] for row in content['trials'] if row['front']} == on_front
    as_csv = read_csv(shown('pareto', made / 'one', '--format=csv'))
    assert [float(row['loss']) for row in as_csv] == [row['loss'] for row in content['trials']]
    assert [int(row['trial']) for row in as_csv if row['front'] == 'true'] == [
        row['trial'] for row in content['trials'] if row['front']
    ]


def test_a_study_without_completed_trials_has_no_front(
    made: Path, tmp_path: Path, shown: Callable[..., str]
) -> None:
    out = tmp_path / 'front.png'
    assert shown('pareto', made / 'empty', f'--out={out}') == 'No trial was completed yet.\n'
    assert not out.exists()


# --- As plots ---


def front(x: Axis, y: Axis, points: list[tuple[float, float, bool]]) -> Front:
    made = [
        Point(i, a, b, {'layer': '<b>wide</b>' * 20}, is_best)
        for i, (a, b, is_best) in enumerate(points, start=1)
    ]
    return Front(x, y, made, {'layer': 'layer'})


NARROW = front(
    Axis('loss', False, 0), Axis('f1', True), [(1, 2, True), (2, 3, True), (2, 1, False)]
)
WIDE = front(Axis('state_bytes', False), Axis('acc', True, 0), [(1e3, 0.1, True), (1e9, 0.9, True)])
MOST = front(Axis('a', True), Axis('b', True), [(1, 2, True), (2, 1, True)])


@pytest.mark.parametrize(('made', 'shape'), [(NARROW, 'hv'), (WIDE, 'hv'), (MOST, 'vh')])
def test_a_page_has_every_trial_and_the_line_of_the_front(made: Front, shape: str) -> None:
    assert not re.search(r'<script[^>]+src=', to_html(made))  # It needs no network.
    figure = figure_of(made)
    *groups, line = figure.data
    assert sum(len(group.hovertext) for group in groups) == len(made.points)
    assert groups[-1].name == 'front'
    assert len(groups[-1].hovertext) == len(made.best)
    assert line.line.shape == shape
    assert figure.layout.xaxis.title.text == title(made.x)
    assert figure.layout.xaxis.type == ('log' if made is WIDE else 'linear')
    text = groups[0].hovertext[0]
    assert '<b>wide' not in text and '&lt;b&gt;wide' in text and '…' in text


def test_titles_say_what_is_good() -> None:
    assert title(NARROW.x) == 'loss (less is better)'
    assert title(NARROW.y) == 'f1 (more is better)'


@pytest.mark.parametrize('made', [NARROW, WIDE, MOST], ids=['narrow', 'wide', 'most'])
@pytest.mark.contract
def test_a_picture(made: Front) -> None:
    picture = to_png(made)
    assert picture[:8] == b'\x89PNG\r\n\x1a\n'
    assert struct.unpack('>II', picture[16:24]) == (1600, 1000)


def test_numbers_beside_points_do_not_overlap() -> None:
    close = [(1.0 + i * 0.01, 2.0 + i * 0.01, True) for i in range(30)]
    figure = drawn(front(Axis('a', False), Axis('b', True), [*close, (5.0, 5.0, True)]))
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert 1 < len(boxes) < 31  # Where there is no room, there is no number.
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize('name', ['front.html', 'front.png'])
def test_plots_are_written(
    made: Path, tmp_path: Path, shown: Callable[..., str], name: str
) -> None:
    out = tmp_path / name
    text = shown('pareto', made / 'one', f'--out={out}')
    assert text.endswith(f' Plotted in {out}.\n')
    assert out.stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(UserError, match=r'--out=.*: cannot be written: No such file'):
        shown('pareto', made / 'one', f'--out={tmp_path / "missing" / name}')


def test_missing_matplotlib_is_reported(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    message = r"^--out=front.png needs matplotlib: pip install 'paxtune\[png\]'$"
    with pytest.raises(UserError, match=message):
        studies(['pareto', str(made / 'one'), '--out=front.png'])


def test_a_plot_is_a_page_or_a_picture(made: Path) -> None:
    with pytest.raises(UserError, match=r'^--out=front.svg: a plot is FILE.html or FILE.png$'):
        studies(['pareto', str(made / 'one'), '--out=front.svg'])


def test_a_study_of_a_function_has_a_front(tmp_path: Path, shown: Callable[..., str]) -> None:
    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    with open_study(tmp_path, space, search=search(budget=Budget(3))) as study:
        while (trial := study.ask()) is not None:
            x = trial.materialize().x
            study.tell(trial, {'loss': 1 / x, 'cost': float(x)})
    content = json.loads(shown('pareto', tmp_path, '--x=cost', '--format=json'))
    assert [row['front'] for row in content['trials']] == [True] * 3
    with pytest.raises(UserError, match="--x=num_params: 'num_params' is not measured"):
        shown('pareto', tmp_path)
