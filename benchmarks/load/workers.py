"""Workers of the contenders, some threads in a process, with orders on standard input.

Optuna's run in an environment of their own, so nothing is imported here that it lacks.
"""

import concurrent.futures
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2]))

STEPS = (40, 80, 160)
WIDTHS, ACTIVATIONS = [64, 128, 256, 512], ['relu', 'gelu', 'tanh']
BUDGET = 1_000_000


class Worker(Protocol):
    """Operations of a contender, for one worker."""

    @staticmethod
    def prepare() -> None:
        """Imports what it needs, which is not measured."""

    def trials(self) -> int:
        """Reads all trials. Returns how many there are."""

    def fill(self, count: int) -> None:
        """Adds ended trials up to a number."""

    def suggest(self) -> None:
        """Takes a new trial."""

    def report(self) -> None:
        """Reports on it, a few times."""

    def complete(self) -> None:
        """Ends it."""


class Paxtune:
    """A worker of a service."""

    @staticmethod
    def prepare() -> None:
        import paxtune.service.remote_store
        import paxtune.study.export
        import paxtune.study.study  # noqa: F401

    def __init__(self, endpoint: str) -> None:
        from paxtune.service.client import Client
        from paxtune.service.remote_store import RemoteStore
        from paxtune.storage.open_study import join_study, open_study
        from paxtune.study import transitions

        store = RemoteStore(Client(endpoint, 'load'), transitions.new_worker())
        if store.study() is None:
            open_study(tempfile.mkdtemp(), self._space(), search=self._search(), store=store)
        self._study = join_study(store, Path('unused'))

    def _space(self) -> Any:
        import pyglove as pg

        return pg.Dict(
            rate=pg.floatv(1e-4, 1e-1, 'log'),
            dropout=pg.floatv(0.0, 0.5),
            width=pg.oneof(WIDTHS),
            activation=pg.oneof(ACTIVATIONS),
        )

    def _search(self) -> Any:
        from paxtune import Budget, MetricReward, RandomSearch, Search

        return Search(MetricReward('minimize', 'loss'), Budget(BUDGET), algorithm=RandomSearch())

    def trials(self) -> int:
        return len(self._study.trials)

    def fill(self, count: int) -> None:
        from paxtune.algorithms.encoding.sampling import draw
        from paxtune.objectives.measurement import Measurement
        from paxtune.search_space.parameters import to_parameters
        from paxtune.study.record import Status, TrialRecord

        rng = random.Random(count)

        def ended() -> Iterator[TrialRecord]:
            for _ in range(count - self.trials()):
                losses = [rng.random() for _ in STEPS]
                reported = [
                    Measurement(step, {'loss': loss}, (loss,))
                    for step, loss in zip(STEPS, losses, strict=True)
                ]
                spec = self._study.space.spec
                yield TrialRecord(
                    to_parameters(spec, draw(spec, rng)),
                    status=Status.COMPLETED,
                    ended=self._study.store.now(),
                    measurements=tuple(reported),
                    final=reported[-1],
                )

        self._study.store.add_trials(list(ended()))

    def suggest(self) -> None:
        trial = self._study.ask()
        assert trial is not None and not trial.resumed
        self._trial = trial

    def report(self) -> None:
        for step in STEPS:
            self._trial.report(step, {'loss': random.random()})

    def complete(self) -> None:
        self._trial.complete()


class Optuna:
    """A worker of a study of Optuna."""

    @staticmethod
    def prepare() -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)  # Not who waits for the journal.

    def __init__(self, where: str) -> None:
        import optuna

        storage: Any
        if where.startswith('postgresql'):
            storage = optuna.storages.RDBStorage(where)
            self._engine: Any = storage.engine
        else:
            from optuna.storages import journal

            storage = journal.JournalStorage(journal.JournalFileBackend(where))
            self._engine = None
        self._study = optuna.create_study(
            storage=storage,
            study_name='load',
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(),
        )

    def trials(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def fill(self, count: int) -> None:
        rng, present = random.Random(count), self.trials()
        added = [self._ended(rng) for _ in range(count - present)]
        if self._engine is None:
            self._study.add_trials(added)
        else:
            self._insert(added, present)

    def _ended(self, rng: random.Random) -> Any:
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        losses = [rng.random() for _ in STEPS]
        return optuna.trial.create_trial(
            params={
                'rate': rng.uniform(1e-4, 1e-1),
                'dropout': rng.uniform(0.0, 0.5),
                'width': rng.choice(WIDTHS),
                'activation': rng.choice(ACTIVATIONS),
            },
            distributions={
                'rate': FloatDistribution(1e-4, 1e-1, log=True),
                'dropout': FloatDistribution(0.0, 0.5),
                'width': CategoricalDistribution(WIDTHS),
                'activation': CategoricalDistribution(ACTIVATIONS),
            },
            value=losses[-1],
            intermediate_values=dict(zip(STEPS, losses, strict=True)),
        )

    def _insert(self, trials: list[Any], first: int) -> None:
        """As `add_trials`, which takes minutes: 15 ms for each trial."""
        import sqlalchemy
        from optuna.distributions import distribution_to_json
        from optuna.storages._rdb import models

        names = 'number', 'state', 'datetime_start', 'datetime_complete'
        finite = models.TrialValueModel.TrialValueType.FINITE
        all_finite = models.TrialIntermediateValueModel.TrialIntermediateValueType.FINITE
        with self._engine.begin() as connection:

            def insert(model: Any, columns: Sequence[str], rows: list[Any]) -> list[int]:
                table = model.__table__
                key = next(iter(table.primary_key))
                statement = table.insert().returning(key, sort_by_parameter_order=True)
                named = [dict(zip(columns, row, strict=True)) for row in rows]
                return list(connection.execute(statement, named).scalars())

            (study,) = connection.execute(sqlalchemy.select(models.StudyModel.study_id)).scalars()
            rows = [
                (study, number, *(getattr(each, name) for name in names[1:]))
                for number, each in enumerate(trials, start=first)
            ]
            ids = insert(models.TrialModel, ['study_id', *names], rows)
            params, values, reports = [], [], []
            for id_, each in zip(ids, trials, strict=True):
                for name, kind in each.distributions.items():
                    value = kind.to_internal_repr(each.params[name])
                    params.append((id_, name, value, distribution_to_json(kind)))
                values.append((id_, 0, each.value, finite))
                for step, value in each.intermediate_values.items():
                    reports.append((id_, step, value, all_finite))
            names = 'trial_id', 'param_name', 'param_value', 'distribution_json'
            insert(models.TrialParamModel, names, params)
            names = 'trial_id', 'objective', 'value', 'value_type'
            insert(models.TrialValueModel, names, values)
            names = 'trial_id', 'step', 'intermediate_value', 'intermediate_value_type'
            insert(models.TrialIntermediateValueModel, names, reports)

    def suggest(self) -> None:
        self._trial: Any = self._study.ask()
        self._trial.suggest_float('rate', 1e-4, 1e-1, log=True)
        self._trial.suggest_float('dropout', 0.0, 0.5)
        self._trial.suggest_categorical('width', WIDTHS)
        self._trial.suggest_categorical('activation', ACTIVATIONS)

    def report(self) -> None:
        for step in STEPS:
            self._loss = random.random()
            self._trial.report(self._loss, step)

    def complete(self) -> None:
        self._study.tell(self._trial, self._loss)


def work(kind: str, where: str, threads: int) -> None:
    """Runs a process of workers by the orders on its standard input."""
    make: Any = {'paxtune': Paxtune, 'Optuna': Optuna}[kind]
    workers: list[Worker] = []
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            if command == 'prepare':
                make.prepare()
            elif command == 'open':
                workers = list(pool.map(lambda _: make(where), range(threads)))
            else:
                done = [pool.submit(getattr(each, command), *arguments) for each in workers]
                for each in done:
                    each.result()
            print('done', flush=True)


if __name__ == '__main__':
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
