"""Helpers of tests of studies."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg

from paxtune import MetricReward
from paxtune.algorithms import RandomSearch
from paxtune.analysis.study_poller import StudyPoller, source_of
from paxtune.analysis.study_state import StudyState
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.measurement import Measurement
from paxtune.schedulers import MedianStopping
from paxtune.search_space.parameters import to_parameters
from paxtune.service import remote_store
from paxtune.service.remote_store import RemoteStore
from paxtune.storage.codec import decode_trial, encode_trial
from paxtune.storage.open_study import open_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.study import transitions
from paxtune.study.record import RunTime, Status, TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import WorkerLoss, claim
from paxtune.study.trial import Trial
from tests.factories.toys import LOSS, search, toy


def ask(study: Study) -> RunningTrial:
    """The next trial of a study that has one."""
    trial = study.ask()
    assert trial is not None
    return trial


def lose(trial: RunningTrial, loss: WorkerLoss, max_attempts: int) -> None:
    """Takes a trial from its worker, as its supervisor does."""
    store = trial._store
    if isinstance(store, RemoteStore):
        remote_store.lose(store._client, store.worker, loss, max_attempts)
        store._held.pop(trial.id, None)
    else:
        store.apply(
            trial.id,
            lambda record, now: transitions.lose(record, loss, max_attempts, trial.step, now),
        )
    trial._show(store.trial(trial.id))


def best(study: Study) -> Trial:
    """The best trial of a study that has one."""
    trial = study.best
    assert trial is not None
    return trial


def finish(trial: RunningTrial) -> None:
    """Runs a trial: the loss is the learning rate, and falls with the steps."""
    rate = trial.materialize().rate
    for step in (10, 20):
        trial.report(step, {'loss': rate / step, 'accuracy': 1 - rate})
    trial.complete()


def run(study: Study) -> list[Trial]:
    """Runs a study to its end."""
    while (trial := study.ask()) is not None:
        finish(trial)
    return study.trials


def run_all_kinds(study: Study) -> None:
    """Adds a completed, a stopped, an infeasible and an unfinished trial."""
    finish(ask(study))
    trial = ask(study)
    trial.report(10, {'loss': 7.0, 'accuracy': 0.1})
    trial.stop('worse than others')
    ask(study).fail('no memory')
    ask(study).report(10, {'loss': 3.0})


def decisions(study: Study) -> list[dict[str, object]]:
    return [trial.decisions for trial in study.trials]


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def beyond(study: Study, cost: Callable[[Any], float], at_most: float) -> list[Trial]:
    """The trials of a study whose experiments cost more than they may."""
    return [trial for trial in study.trials if cost(trial.materialize()) > at_most]


def never_trained(study: Study, trial: Trial) -> bool:
    """Returns True if a trial has neither a measurement nor a file of a run."""
    # Imported here: it imports JAX, and most studies of tests have no use for it.
    from paxtune.study.trial_paths import trial_directory

    left = [path.name for path in trial_directory(study.directory, trial).rglob('*')]
    # TensorBoard compares all trials. The summaries of a run have a directory of their own.
    of_a_run = [name for name in left if not name.startswith('events.out.tfevents.')]
    return set(of_a_run) <= {'trial.json'} and not trial.measurements


def rewrite(study: Study, number: int, **fields: Any) -> None:
    """Replaces fields of a stored trial, as another program might."""
    store = study.store
    assert isinstance(store, VizierStore)
    (stored,) = store.protos([number])
    changed = dataclasses.replace(decode_trial(stored), **fields)
    store.write_trials([encode_trial(changed, stored)])


def rewrite_study(study: Study, **fields: Any) -> None:
    """Replaces fields of a stored study, as another program might."""
    study.store.update_study(lambda record: dataclasses.replace(record, **fields))


def bare_state(study: Study) -> StudyState:
    """The state of a study, as one reads it that does not know the classes of its experiment."""
    return StudyPoller(source_of(study.store, 'here')).poll()


def mixed(directory: Path) -> None:
    """Seven trials, one of each outcome at least; 3 is the best."""
    with open_study(directory, toy(search=search(budget=Budget(9)))) as study:
        for loss in (0.5, 0.75, 0.1):
            trial = ask(study)
            trial.report(10, {'loss': loss, 'accuracy': 1 - loss})
            trial.complete()
        trial = ask(study)
        trial.report(10, {'loss': 0.01})
        trial.stop('worse than others')
        ask(study).fail('the training loss is nan at step 7', is_error=True)
        ask(study).fail('the training loss is nan at step 12')
        ask(study).report(10, {'loss': 0.02})
        study.add({'rate': 0.01})


def states(study: Study) -> list[str]:
    return [trial.state for trial in study.trials]


def study_of_all_kinds(directory: Path) -> Study:
    """A study with a completed, a stopped, an infeasible and an unfinished trial."""
    study = open_study(directory, toy(search=search(scheduler=MedianStopping())))
    run_all_kinds(study)
    return study


def rename_module(study: Study | VizierStore, before: str, after: str) -> None:
    """Renames the classes of a module in a study, as if the module could not be imported."""

    def renamed(text: str) -> str:
        return text.replace(f'{before}.', f'{after}.')

    store = study.store if isinstance(study, Study) else study
    store.update_study(
        lambda record: dataclasses.replace(
            record,
            value=renamed(record.value),
            defaults=json.loads(renamed(json.dumps(record.defaults))),
        )
    )


def opened(directory: Path | None = None, space: Any = None, **fields: Any) -> Study:
    given = {'objective': LOSS, 'budget': Budget(99), 'algorithm': RandomSearch()} | fields
    search = Search(**given)
    return open_study(directory, space or pg.Dict(x=pg.floatv(0.0, 100.0)), search=search)


def finish_with(trial: RunningTrial, loss: float) -> RunningTrial:
    trial.report(1, {'loss': loss, 'size': loss**2})
    trial.complete()
    return trial


def ran(study: Study, *losses: float) -> Study:
    """The study, with more trials."""
    for loss in losses:
        finish_with(ask(study), loss)
    return study


def tried(study: Study) -> list[tuple[int, int | None, int]]:
    return [
        (trial.id, trial.lineage.replicate_of_here, trial.lineage.replicate)
        for trial in study.trials
    ]


def start_next(study: Study) -> RunningTrial:
    number = len(study.trials) + 1
    suggestion, lineage = study.suggester.next(number)
    parameters = to_parameters(study.space.spec, suggestion.decisions)
    record = TrialRecord(parameters, id=number, lineage=lineage)
    (added,) = study.store.add_trials([claim(record, 'a', study.store.now())])
    return study.open_trial(added.id)


def confirmable(directory: Path | None = None, **fields: Any) -> Study:
    """A done study: trial 3 is the luckiest."""
    fields = {'budget': Budget(6)} | fields
    return ran(opened(directory, **fields), 5.0, 3.0, 2.0, 2.5, 6.0, 4.0)


NUM_TRIALS = 100
EVIL = '<script>document.title = "stolen"</script>'
SPACE = pg.Dict(
    **{f'a_decision_of_some_length_{i}': pg.floatv(1e-4, 1e-1, 'log') for i in range(12)},
    kind=pg.oneof(['plain', 'other', EVIL]),
)


def make_long_study(directory: Path) -> None:
    """Makes the study. Every tenth trial is infeasible."""
    search = Search(MetricReward('minimize', 'loss'), Budget(NUM_TRIALS), RandomSearch())
    with open_study(directory, SPACE, search=search) as study:
        rng = np.random.default_rng(0)
        study.store.add_trials([_trial(study, i, rng) for i in range(1, NUM_TRIALS + 1)])


def _trial(study: Study, number: int, rng: np.random.Generator) -> TrialRecord:
    decisions = study.suggester.next(number)[0].decisions
    losses = rng.random(300)  # Random digits compress worst.
    measured = tuple(
        Measurement(step, {'loss': float(loss)}, (float(loss),))
        for step, loss in enumerate(losses, start=1)
    )
    is_infeasible = number % 10 == 0
    return TrialRecord(
        to_parameters(study.space.spec, decisions),
        id=number,
        status=Status.INFEASIBLE if is_infeasible else Status.COMPLETED,
        measurements=measured,
        final=None if is_infeasible else measured[-1],
        reason=f'no memory {EVIL}' if is_infeasible else None,
        created=study.store.now(),
        ended=study.store.now(),
        run_time=RunTime(float(rng.random())),
    )
