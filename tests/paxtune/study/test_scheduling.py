"""Schedulers that pause, promote and fork, on studies as they are kept."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import Budget, MetricReward, Search, tune
from paxtune.algorithms import RandomSearch
from paxtune.running.trial_spec import TrialSpec
from paxtune.schedulers import Pause, PopulationBasedTraining, PromotingAsha
from paxtune.simulate.replay_workload import State, newest, save
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study.record import SCHEDULER, Lineage, Status, TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.store import AddSuggested
from paxtune.study.study import Study
from paxtune.study.transitions import IllegalTransition, Transition
from paxtune.study.trial_paths import attempt_directories
from trainer.symbolic.errors import UserError

LOSS = MetricReward('minimize', 'loss')
SPACE = pg.Dict(x=pg.floatv(0.0, 1.0))


def search(**fields: Any) -> Search:
    given = {
        'objective': LOSS,
        'budget': Budget(9),
        'algorithm': RandomSearch(),
        'scheduler': PromotingAsha(min_resource=1, max_resource=9, reduction_factor=3),
    }
    return Search(**(given | fields))


def run_until_paused(study: Study, trial: RunningTrial, end: int = 9) -> None:
    """Does what a tuner does: the smaller x, the better."""
    loss = trial.materialize().x
    begun = [*trial.view.record.pauses, *(trial.lineage.forked_from or ())[1:]]
    for step in range(max(begun, default=1), end + 1):
        trial.report(step, {'loss': loss + 1 / step})
        decision = study.decide(trial) if step < end else None
        if isinstance(decision, Pause):
            trial.pause(step, decision.reason)
            return
    trial.complete()


def test_a_parent_leaves_a_fork_alone_that_has_gone_further(tmp_path: Path) -> None:
    with open_study(tmp_path, SPACE, search=search()) as study:
        parent = TrialRecord({'x': 0.1}, status=Status.PAUSED, pauses=(3,))
        lineage = Lineage(origin=SCHEDULER, parent=1, forked_from=(1, 3))
        fork = TrialRecord({'x': 0.2}, status=Status.ACTIVE, attempt=2, lineage=lineage)
        study.store.add_trials([parent, fork])
        # The second attempt takes over what the first has: that may be newer than the fork.
        first, second = attempt_directories(tmp_path, study.trial(2))
        spec = TrialSpec.of(study, study.trial(1))
        assert list(spec.forks) == [([first, second], 3)]
        for step in (3, 6):  # The parent keeps few checkpoints.
            save(State(((1, 3), (2, step))), Path(first if step == 6 else spec.directory))
        spec.begin()
        assert newest(Path(second)) == (State(), None)
        assert TrialSpec.of(study, study.trial(2)).earlier == [first]


def test_a_parent_that_goes_on_brings_its_forks_their_checkpoint_first(tmp_path: Path) -> None:
    with open_study(tmp_path, SPACE, search=search()) as study:
        parent = TrialRecord({'x': 0.1}, status=Status.PAUSED, pauses=(3,))
        lineage = Lineage(origin=SCHEDULER, parent=1, forked_from=(1, 3))
        study.store.add_trials([parent, TrialRecord({'x': 0.2}, lineage=lineage)])
        spec = TrialSpec.of(study, study.trial(1))
        save(State(((1, 3),)), Path(spec.directory))
        spec.begin()  # From here on it may delete the checkpoint.
        (waiting,) = attempt_directories(tmp_path, study.trial(2))
        assert newest(Path(waiting))[0] == State(((1, 3),))


def test_curves_have_the_decisions_as_numbers() -> None:
    space = pg.Dict(x=pg.floatv(0.0, 4.0), kind=pg.oneof(['a', 'b']))
    with open_study(None, space, search=search(initial_trials=[{'x': 1.0, 'kind': 'b'}])) as study:
        study.ask()
        (curve,) = study.curves()
        assert curve.point == pytest.approx([0.25, 0.0, 0.5**0.5])


def run_to_the_end(study: Study) -> None:
    while (trial := study.ask()) is not None:
        run_until_paused(study, trial)


@pytest.fixture(params=[True, False], ids=['on disk', 'in memory'])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param else None


def test_the_best_of_each_rung_are_promoted_and_the_others_end_once(where: Path | None) -> None:
    with open_study(where, SPACE, search=search()) as study:
        run_to_the_end(study)
        trials = study.trials
        assert len(trials) == 9
        assert study.done_reason == 'it has all of its 9 trials'
        best = min(trials, key=lambda trial: trial.decisions['x'])
        assert study.best is not None and study.best.id == best.id
        assert best.record.pauses == (1, 3)
        for trial in trials:
            assert trial.final is not None
            if trial.status == 'completed':
                assert (trial.record.pauses, trial.final.step) == ((1, 3), 9)
            else:
                assert trial.status == 'stopped'
                assert trial.stop_reason == f'not promoted from step {trial.record.pauses[-1]}'
                assert trial.final.step == trial.record.pauses[-1]
        # The first of a rung may be promoted before better ones come.
        assert 1 <= sum(trial.status == 'completed' for trial in trials) <= 3
        assert sum(trial.record.pauses == (1,) for trial in trials) >= 4


class Overtaken(LocalStore):
    """A store in which another worker promotes each trial first, after its service restarted."""

    other_worker: Study
    runs = False  # Whether it also runs the trial to its next pause.
    _is_other = True

    @contextlib.contextmanager
    def turn(self) -> Iterator[AddSuggested]:
        with super().turn() as add:
            self._is_other = False
            yield add
        self._is_other = True

    def trial(self, id_: int) -> TrialRecord:
        self._overtake(super().trial(id_))
        return super().trial(id_)

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        found = super().trial(id_)
        with contextlib.suppress(IllegalTransition):
            if transition(found, self.now()).status is Status.ACTIVE:
                self._overtake(found)
        return super().apply(id_, transition)

    def _overtake(self, found: TrialRecord) -> None:
        if self._is_other or found.paused_at != 1:
            return
        self._is_other = True
        self.other_worker.open_trial(found.id).promote('first')
        if self.runs and (claimed := self.claim(self.ids())) is not None:
            run_until_paused(self.other_worker, self.other_worker.open_trial(claimed.id))


@pytest.mark.parametrize('runs', [False, True])
def test_a_worker_whose_promotion_comes_second_changes_nothing(runs: bool) -> None:
    store = Overtaken(Database(None))
    with (
        open_study(None, SPACE, search=search()) as alone,
        open_study(None, SPACE, search=search(), store=store) as study,
    ):
        run_to_the_end(alone)
        store.other_worker, store.runs = study, runs
        run_to_the_end(study)
        for trial, other in zip(study.trials, alone.trials, strict=True):
            assert (trial.status, trial.record.pauses) == (other.status, other.record.pauses)
            events = [event.detail for event in trial.record.history if event.event == 'promoted']
            assert events[:1] == ['first'] * bool(other.record.pauses[1:])


def test_a_paused_trial_is_active_and_nobodys(where: Path | None) -> None:
    with open_study(where, SPACE, search=search()) as study:
        trial = study.ask()
        assert trial is not None
        run_until_paused(study, trial)
        (paused,) = study.trials
        assert (paused.state, paused.status, paused.record.holder) == ('ACTIVE', 'paused', '')
        assert (paused.record.paused_at, paused.is_terminal) == (1, False)
        assert not study.is_done
        other = study.ask()
        assert other is not None and other.id == 2
        opened = study.open_trial(1)
        opened.promote('because')
        with pytest.raises(RuntimeError, match='trial 1 is ACTIVE: that pause is over'):
            opened.promote('again')
        assert [event['event'] for event in opened.view.history] == [
            'claimed',
            'paused',
            'promoted',
        ]


def test_a_study_that_is_opened_again_goes_on_as_it_would_have(tmp_path: Path) -> None:
    def reopened(directory: Path) -> list[Any]:
        while True:
            with open_study(directory, SPACE, search=search()) as study:
                trial = study.ask()
                if trial is None:
                    return told(study)
                run_until_paused(study, trial)

    with open_study(tmp_path / 'whole', SPACE, search=search()) as study:
        run_to_the_end(study)
        whole = told(study)
    assert reopened(tmp_path / 'again') == whole


def told(study: Study) -> list[Any]:
    return [
        (
            each.id,
            dict(each.decisions),
            each.status,
            each.rewards,
            each.record.pauses,
            each.lineage.weights_from,
        )
        for each in study.trials
    ]


def test_a_search_that_gets_more_trials_later_goes_on(tmp_path: Path) -> None:
    with open_study(tmp_path, SPACE, search=search(budget=Budget(3))) as study:
        run_to_the_end(study)
        assert any(trial.status == 'completed' for trial in study.trials)
    with open_study(tmp_path, SPACE, search=search(budget=Budget(6))) as study:
        run_to_the_end(study)
        assert len(study.trials) == 6
        assert all(trial.is_terminal for trial in study.trials)


def test_a_function_is_tuned_with_pauses() -> None:
    def train(values: Any) -> Iterator[dict[str, float]]:
        for step in range(1, 10):
            yield {'loss': values.x + 1 / step}

    study = tune(train, space=SPACE, **dict(search().sym_items()))
    with study:
        assert any(trial.status == 'stopped' for trial in study.trials)
        assert study.best is not None
        assert study.best.id == min(study.trials, key=lambda each: each.decisions['x']).id


# --- Forks ---


POPULATION = PopulationBasedTraining(population_size=4, interval=3)


def test_forks_take_the_place_of_the_worst(where: Path | None) -> None:
    with open_study(where, SPACE, search=search(scheduler=POPULATION, budget=Budget(6))) as study:
        run_to_the_end(study)
        trials = study.trials
        assert [trial.lineage.origin for trial in trials] == ['algorithm'] * 4 + ['scheduler'] * 2
        for fork in trials[4:]:
            assert fork.lineage.forked_from is not None and fork.lineage.replaces is not None
            parent, step = fork.lineage.forked_from
            assert fork.lineage.weights_from == fork.lineage.forked_from
            assert step in study.trial(parent).record.pauses
            replaced = study.trial(fork.lineage.replaces)
            assert replaced.status == 'stopped'
            assert replaced.stop_reason == f'replaced by trial {fork.id}'
            assert fork.measurements[0].step >= step
        assert sum(trial.status == 'completed' for trial in trials) == 4


def test_a_kill_between_a_fork_and_the_end_of_what_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = search(scheduler=POPULATION, budget=Budget(6))
    with open_study(tmp_path / 'whole', SPACE, search=how) as study:
        run_to_the_end(study)
        whole = told(study)

    def killed(trial: RunningTrial, reason: str) -> None:
        raise KeyboardInterrupt

    directory = tmp_path / 'killed'
    with open_study(directory, SPACE, search=how) as study, monkeypatch.context() as kill:
        kill.setattr(RunningTrial, 'end_early', killed)
        with pytest.raises(KeyboardInterrupt):
            run_to_the_end(study)
        assert study.trials[-1].lineage.replaces is not None
        assert study.trial(study.trials[-1].lineage.replaces).status is Status.PAUSED
    with open_study(directory, SPACE, search=how) as study:
        run_to_the_end(study)
        assert told(study) == whole


# --- What cannot be ---


def test_pauses_and_repeats_do_not_go_together() -> None:
    with pytest.raises(ValueError, match='replicates'):
        search(replicates=2)


def test_a_space_without_numbers_has_nothing_to_perturb(tmp_path: Path) -> None:
    space = pg.Dict(x=pg.oneof([1, 2, 3]), y=pg.oneof([1, 2, 3]))
    with pytest.raises(UserError, match='perturbs numbers, and the space has none'):
        open_study(tmp_path / 'study', space, search=search(scheduler=POPULATION))
    assert not (tmp_path / 'study').exists()


def test_an_unknown_max_resource_is_refused_before_the_first_trial() -> None:
    scheduler = PromotingAsha(min_resource=1)
    with pytest.raises(UserError, match=r'^search\.scheduler: .*max_resource'):
        open_study(None, SPACE, search=search(scheduler=scheduler))
