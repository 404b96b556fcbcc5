"""Studies, trials, spaces and experiments as notebooks show them."""

from html.parser import HTMLParser

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from tests.factories.studies import ask, run_all_kinds
from tests.factories.tiny import experiment
from tests.factories.toys import LOSS, search, toy
from trainer.symbolic.html import html_table

EVIL = '<script>alert(1)</script>&"'


class Cells(HTMLParser):
    """The texts of the cells of a table, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts += [data] if data.strip() else []


def cells(shown: object) -> list[str]:
    found = Cells(shown._repr_html_())  # type: ignore[attr-defined]
    assert found.tags <= {'table', 'caption', 'b', 'thead', 'tbody', 'tr', 'th', 'td'}
    return found.texts


def test_a_study_shows_its_counts_and_the_best_trials() -> None:
    with open_study(None, toy()) as study:
        assert cells(study)[0] == 'Study in memory: no trial'
        run_all_kinds(study)
        caption, *texts = cells(study)
        assert caption == (
            'Study in memory: 1 completed, 1 stopped, 1 infeasible, 1 active. The best trials:'
        )
        best = study.best
        assert best is not None
        assert texts[:4] == ['trial', 'state', 'loss', 'rate']
        row = texts[texts.index('completed') - 1 :]
        assert row[:4] == ['1', 'completed', f'{best.reward:.6g}', f'{best.decisions["rate"]:.6g}']


def test_a_study_of_two_objectives_shows_its_front() -> None:
    both = Objectives([LOSS, MetricReward('maximize', 'accuracy')])
    with open_study(None, toy(search=search(objective=both))) as study:
        run_all_kinds(study)
        assert cells(study)[0].endswith('The front has 1 trial:')


def test_a_trial_shows_its_decisions_and_why_it_ended() -> None:
    with open_study(None, toy()) as study:
        trial = ask(study)
        trial.fail(f'an error {EVIL}')
        caption, *texts = cells(study.trials[0])
        assert caption == 'Trial 1'
        named = dict(zip(texts[::2], texts[1::2], strict=True))
        assert named['state'] == 'infeasible' and named['reason'] == f'an error {EVIL}'
        assert named['rate'] == f'{trial.decisions["rate"]:.6g}'


def test_trials_show_a_row_each_and_the_last_ones_of_many() -> None:
    with open_study(None, toy(search=search(budget=Budget(40)))) as study:
        run_all_kinds(study)
        caption, *texts = cells(study.trials)
        assert caption == '4 trials' and texts[:4] == ['trial', 'state', 'reward', 'rate']
        states = ('completed', 'stopped', 'infeasible', 'active')
        assert [each for each in texts if each in states] == [*states]
        while len(study.trials) < 32:
            ask(study).fail('an error')
        caption, *texts = cells(study.trials)
        assert caption == '32 trials. The last 30:'
        assert texts.count('infeasible') == 29 and texts.count('active') == 1


def test_a_trial_that_was_asked_for_shows_its_decisions() -> None:
    with open_study(None, toy()) as study:
        trial = study.ask()
        assert trial is not None
        assert f'{trial.decisions["rate"]:.6g}' in cells(trial)


def test_a_space_shows_its_decisions_as_text() -> None:
    space = Space(pg.Dict(kind=pg.oneof([EVIL, 'b']), rate=pg.floatv(1e-4, 1e-2, 'log')))
    caption, *texts = cells(space)
    assert caption == 'Search space of infinitely many different experiments'
    assert f'one of {EVIL}, b' in texts and 'log' in texts


def test_an_experiment_shows_what_is_not_a_default() -> None:
    caption, *texts = cells(experiment(num_steps=6))
    assert caption == 'Experiment'
    assert texts[texts.index('train') + 1].startswith('TrainLoop(num_train_steps=6')
    assert 'task.learner' in texts and 'smoke' not in texts


def test_long_text_is_shortened() -> None:
    assert len(Cells(html_table('', [], [['x' * 1000]])).texts[0]) == 200
