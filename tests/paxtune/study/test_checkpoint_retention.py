"""Retention of the checkpoints of a study."""

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from etils import epath

from paxtune.algorithms import RandomSearch, RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.retention import Retention
from paxtune.config.search import Search
from paxtune.engines.remote import Remote
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.search_space.space import Space
from paxtune.service.address import Service
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.checkpoint_retention import (
    REMOVED,
    CheckpointCleaner,
    disk_bytes,
    require_weights,
)
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import WorkerLoss
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory, trial_directory
from tests.factories.studies import ask, lose
from tests.factories.tunables import Rates
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

LOSS = MetricReward('minimize', 'loss')
SIZE = 1000


def opened(directory: Path | None, **fields: Any) -> Study:
    """A study that minimizes x, among whole numbers."""
    search = Search(
        **{
            'objective': LOSS,
            'budget': Budget(99),
            'retention': Retention(best=2),
            'algorithm': RandomSearch(),
        }
        | fields
    )
    return open_study(directory, pg.Dict(x=pg.floatv(0.0, 100.0)), search=search)


def save(study: Study, trial: Trial, *steps: int, part: str = '', attempt: int = 1) -> JobPath:
    """Writes what is taken for checkpoints."""
    directory = attempt_directory(study.directory, trial, attempt) / part / 'checkpoints'
    for step in steps or (2,):
        (directory / str(step) / 'state').mkdir(parents=True)
        (directory / str(step) / '_CHECKPOINT_METADATA').write_text('{}')
        (directory / str(step) / 'state' / 'd').write_bytes(bytes(SIZE - 2))
    return directory


def add(study: Study, loss: float, *, end: str = 'complete', **options: Any) -> RunningTrial:
    """A trial that has a checkpoint, and ends."""
    study.add({'x': loss}, **options)
    trial = ask(study)
    save(study, trial.view)
    trial.report(1, {'loss': loss, 'size': 100 - loss, 'other': -loss})
    if end == 'complete':
        trial.complete()
    elif end == 'stop':
        trial.stop('early')
    elif end == 'fail':
        trial.fail('for a reason')
    return trial


def with_weights(study: Study) -> list[int]:
    """The trials that have checkpoints."""
    found = []
    for trial in study.trials:
        directory = trial_directory(study.directory, trial)
        if any(path.name.isdigit() for path in directory.rglob('checkpoints/*')):
            found.append(trial.id)
    return found


def test_the_best_ones_stay(tmp_path: Path) -> None:
    with opened(tmp_path) as study:
        for loss in (5.0, 1.0, 3.0, 2.0):
            add(study, loss)
        add(study, 0.0, end='fail')
        add(study, 0.0, end='stop')
        assert CheckpointCleaner(study).remove_unneeded() == [1, 3, 5, 6]
        assert with_weights(study) == [2, 4] == sorted(trial.id for trial in study.top(2))
        assert CheckpointCleaner(study).remove_unneeded() == []
        # Nothing but checkpoints goes.
        assert (trial_directory(study.directory, study.trial(1)) / REMOVED).is_dir()


def test_one_that_looks_after_a_study_goes_on_as_it_does(tmp_path: Path) -> None:
    with opened(tmp_path) as study:
        kept = CheckpointCleaner(study)
        assert kept.remove_unneeded() == []
        removed = []
        for loss in (5.0, 4.0, 3.0, 4.5):
            add(study, loss)
            removed.append(kept.remove_unneeded())
        assert removed == [[], [], [1], [4]]
        assert with_weights(study) == [2, 3]


@pytest.mark.parametrize(('keep', 'left'), [(None, [1, 2, 3]), (0, []), (1, [2]), (99, [1, 2])])
def test_as_many_stay_as_the_search_says(keep: int | None, left: list[int], tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=keep)) as study:
        for loss, end in ((5.0, 'complete'), (1.0, 'complete'), (0.0, 'fail')):
            add(study, loss, end=end)
        CheckpointCleaner(study).remove_unneeded()
        assert with_weights(study) == left


def test_the_number_of_kept_checkpoints_may_change(tmp_path: Path) -> None:
    with opened(tmp_path) as study:
        add(study, 1.0)
    with opened(tmp_path, retention=Retention(best=0, max_disk_gb=2.0)) as study:
        assert CheckpointCleaner(study).remove_unneeded() == [1]


@pytest.mark.parametrize(
    ('field', 'value'), [('best', -1), ('max_disk_gb', 0.0), ('max_disk_gb', -2.0)]
)
def test_bounds_that_are_none_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Retention(**{field: value})


def test_active_trials_and_their_parents_keep_all_checkpoints(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=0, max_disk_gb=1e-9)) as study:
        add(study, 5.0)
        add(study, 6.0)
        running = add(study, 0.0, end='', warm_start=1)
        waiting = study.add({'x': 1.0}, warm_start=2)
        assert CheckpointCleaner(study).remove_unneeded() == []
        running.complete()
        assert CheckpointCleaner(study).remove_unneeded() == [1, 3]
        waiting = ask(study)
        waiting.fail('no')
        assert CheckpointCleaner(study).remove_unneeded() == [2]


def test_parents_of_the_best_trials_keep_their_checkpoints(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=1)) as study:
        add(study, 9.0)
        add(study, 5.0, warm_start=1)
        add(study, 1.0, warm_start=2)
        assert CheckpointCleaner(study).remove_unneeded() == [1]
        assert with_weights(study) == [2, 3]


def test_all_that_may_become_parents_stay_unless_there_is_no_room(tmp_path: Path) -> None:
    algorithm = RegularizedEvolution(population_size=2, tournament_size=1)
    with opened(tmp_path, warm_start='parent', algorithm=algorithm) as study:
        for loss in (5.0, 1.0, 3.0):
            add(study, loss)
        add(study, 0.0, end='stop')
        add(study, 0.0, end='fail')
        assert CheckpointCleaner(study).remove_unneeded() == [5]
        study.search.rebind({'retention.max_disk_gb': (2 * SIZE + 500) / 1e9})
        assert CheckpointCleaner(study).remove_unneeded() == [4, 1]
        assert with_weights(study) == [2, 3]


def test_the_worst_go_first_where_there_is_no_room(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=None)) as study:
        for loss in (5.0, 1.0, 3.0):
            add(study, loss)
        add(study, 0.0, end='stop')
        add(study, 0.0, end='fail')
        looking = CheckpointCleaner(study)
        gone = []
        for room in (5, 4, 3, 2, 1, 0.5):
            study.search.rebind({'retention.max_disk_gb': (room * SIZE) / 1e9})
            gone += looking.remove_unneeded()
            assert disk_bytes(tmp_path / 'trials') <= room * SIZE
        assert gone == [5, 4, 1, 3, 2]


def test_an_exceeded_disk_limit_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, retention=Retention(best=2, max_disk_gb=1e-9)) as study:
        add(study, 1.0, end='')
        looking = CheckpointCleaner(study)
        assert [looking.remove_unneeded(), looking.remove_unneeded()] == [[], []]
        assert with_weights(study) == [1]
    assert caplog.text.count('search.retention.max_disk_gb is 1e-09') == 1


def test_with_several_objectives_the_front_stays(tmp_path: Path) -> None:
    both = Objectives([LOSS, MetricReward('minimize', 'size')])
    with opened(tmp_path, objective=both, retention=Retention(best=4)) as study:
        # All of them are on the front, but for those that come last.
        for loss in (10.0, 50.0, 20.0, 90.0, 52.0):
            add(study, loss)
        CheckpointCleaner(study).remove_unneeded()
        assert with_weights(study) == [1, 3, 4, 5], 'the one that has the closest neighbours goes'
    other = Objectives([LOSS, MetricReward('maximize', 'other')])
    with opened(tmp_path / 'other', objective=other, retention=Retention(best=2)) as study:
        for loss in (10.0, 50.0, 20.0):
            add(study, loss)
        assert CheckpointCleaner(study).remove_unneeded() == [2]


def test_where_nothing_is_better_than_another_all_stay_that_were_completed(tmp_path: Path) -> None:
    with opened(tmp_path, objective=None, retention=Retention(best=1)) as study:
        for _ in range(2):
            add(study, 1.0)
        add(study, 1.0, end='fail')
        assert CheckpointCleaner(study).remove_unneeded() == [3]
        study.search.rebind({'retention.max_disk_gb': SIZE / 1e9})
        assert CheckpointCleaner(study).remove_unneeded() == [1]


def lost(study: Study, loss: float) -> RunningTrial:
    """A trial in its second attempt."""
    study.add({'x': loss})
    trial = ask(study)
    save(study, trial.view)
    lose(trial, WorkerLoss('a crash', counts=True), 3)
    trial = ask(study)
    assert trial.view.attempt == 2
    return trial


def test_an_earlier_attempt_keeps_its_checkpoints_until_a_later_one_has_some(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as study:
        trial = lost(study, 1.0)
        first = trial_directory(study.directory, trial.view) / 'checkpoints'
        (
            attempt_directory(study.directory, trial.view)
            / 'checkpoints'
            / '4.orbax-checkpoint-tmp'
        ).mkdir(parents=True)
        CheckpointCleaner(study).remove_unneeded()
        assert (first / '2').exists()
        save(study, trial.view, 4, attempt=2)
        assert CheckpointCleaner(study).remove_unneeded() == []
        assert not first.exists()
        trial.report(1, {'loss': 1.0})
        trial.complete()
        assert CheckpointCleaner(study).remove_unneeded() == []
        assert (attempt_directory(study.directory, trial.view) / 'checkpoints' / '4').exists()


def test_all_attempts_at_a_trial_go(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=0)) as study:
        trial = lost(study, 1.0)
        save(study, trial.view, 2, attempt=2)
        trial.fail('no')
        assert CheckpointCleaner(study).remove_unneeded() == [1]
        assert with_weights(study) == []


def test_each_sub_experiment_is_looked_at_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, 'sub_experiments', ['long', 'short'])
    with opened(tmp_path, retention=Retention(best=1)) as study:
        trial = lost(study, 1.0)
        first = [save(study, trial.view, part=part) for part in ('long', 'short')]
        save(study, trial.view, part='long', attempt=2)
        CheckpointCleaner(study).remove_unneeded()
        assert [each.exists() for each in first] == [False, True]
        trial.fail('no')
        assert CheckpointCleaner(study).remove_unneeded() == [1]
        assert [each.exists() for each in first] == [False, False]


def test_a_study_in_memory_and_trials_from_elsewhere_have_nothing_to_remove(tmp_path: Path) -> None:
    with opened(None) as study:
        assert CheckpointCleaner(study).remove_unneeded() == []
        require_weights(study, study.add({'x': 1.0}).view)
    with opened(tmp_path, retention=Retention(best=0, max_disk_gb=1.0)) as study:
        study.add({'x': 1.0})
        ask(study).fail('no')
        assert CheckpointCleaner(study).remove_unneeded() == []


def test_a_kill_leaves_nothing_that_counts_and_the_rest_is_removed_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with opened(tmp_path, retention=Retention(best=0)) as study:
        directory = trial_directory(study.directory, add(study, 1.0).view)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, 'rmtree', die)
            with pytest.raises(Killed):
                CheckpointCleaner(study).remove_unneeded()
        assert not (directory / 'checkpoints').exists()
        assert list((directory / REMOVED).iterdir())
        save(study, study.trial(1), 4)  # A worker that came back goes on.
        assert CheckpointCleaner(study).remove_unneeded() == [1]
        assert [path.name for path in directory.iterdir()] == [REMOVED]
        assert not list((directory / REMOVED).iterdir())


def test_those_in_a_store_go_too_and_a_kill_leaves_nothing_that_counts(
    store: epath.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    kept = LocalStore(Database(None))
    value, how = (
        pg.Dict(x=pg.floatv(0.0, 100.0)),
        Search(LOSS, Budget(99), RandomSearch(), retention=Retention(best=1)),
    )
    with open_study(store, value, search=how, store=kept) as study:
        for loss in (2.0, 1.0):
            add(study, loss)
        worst, best = (trial_directory(study.directory, trial) for trial in study.trials)
        for directory in (worst, best):
            (directory / 'checkpoints/2/commit_success.txt').write_text('')
        with monkeypatch.context() as patch:
            patch.setattr(type(store), 'rmtree', die)
            with pytest.raises(Killed):
                CheckpointCleaner(study).remove_unneeded()
        assert (worst / 'checkpoints/2').exists()
        assert newest_checkpoint(worst / 'checkpoints') is None
        assert CheckpointCleaner(study).remove_unneeded() == [1]
        assert CheckpointCleaner(study).remove_unneeded() == []
        assert [path.name for path in worst.iterdir()] == [REMOVED]
        assert newest_checkpoint(best / 'checkpoints') is not None
        require_weights(study, study.trial(2))
        with pytest.raises(UserError, match='the weights of trial 1 were removed'):
            require_weights(study, study.trial(1))


def test_buckets_are_not_measured(store: epath.Path) -> None:
    service = Service('127.0.0.1:1', 'mine')
    with pytest.raises(UserError, match=rf'max_disk_gb=1: the size of {store} cannot be measured'):
        tune(
            Rates(), job_log_dir=store, retention=Retention(max_disk_gb=1.0), engine=Remote(service)
        )


def test_a_failed_removal_is_logged_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, 'Permission denied')

    with opened(tmp_path, retention=Retention(best=0)) as study:
        add(study, 1.0)
        looking = CheckpointCleaner(study)
        with monkeypatch.context() as patch:
            patch.setattr(Path, 'rename', refuse)
            assert looking.remove_unneeded() == []
        assert 'cannot be removed: [Errno 13]' in caplog.text
        assert looking.remove_unneeded() == [1]


def test_several_workers_do_it_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=3)) as study:
        for loss in range(20):
            save(study, add(study, float(loss)).view, *range(3, 8))
    removed: list[Sequence[int]] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        with load_study(tmp_path) as study:
            barrier.wait()
            removed.append(CheckpointCleaner(study).remove_unneeded())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(removed) == 4
    assert sorted(number for each in removed for number in each) == [*range(4, 21)]
    with load_study(tmp_path) as study:
        assert with_weights(study) == [1, 2, 3]
        assert not list((tmp_path / 'trials').rglob(f'{REMOVED}/*'))


def test_weights_that_were_removed_are_missed_by_name(tmp_path: Path) -> None:
    with opened(tmp_path, retention=Retention(best=1)) as study:
        add(study, 1.0)
        add(study, 2.0)
        CheckpointCleaner(study).remove_unneeded()
        require_weights(study, study.trial(1))
        with pytest.raises(UserError, match=r'of trial 2 were removed.*best=1'):
            require_weights(study, study.trial(2))


def test_bytes_that_have_two_names_count_once(tmp_path: Path) -> None:
    (tmp_path / 'one').write_bytes(bytes(100))
    (tmp_path / 'in').mkdir()
    os.link(tmp_path / 'one', tmp_path / 'in' / 'two')
    (tmp_path / 'in' / 'three').write_bytes(bytes(10))
    assert disk_bytes(tmp_path) == 110
    assert disk_bytes(tmp_path / 'missing') == 0


@pytest.mark.slow
def test_the_best_of_a_real_study_can_still_be_read(tmp_path: Path) -> None:
    made = Rates()
    made.rebind({'search.retention.best': 1, 'search.budget.trials': 3})
    with tune(made, job_log_dir=tmp_path) as study:
        CheckpointCleaner(study).remove_unneeded()
        (best,) = study.top(1)
        assert with_weights(study) == [best.id]
        newest = newest_checkpoint(trial_directory(study.directory, best) / 'checkpoints')
        assert newest is not None
        assert newest.name == '6'
        assert best.measurements[-1].checkpoint == str(newest)
        used = disk_bytes(tmp_path)
        assert 0 < used < 3 * 10**6
    with tune(made, job_log_dir=tmp_path) as study:
        assert study.is_done
