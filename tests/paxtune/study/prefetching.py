"""Studies whose suggestions are made while trials run, for tests."""

from pathlib import Path
from typing import Any

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.paxtune.asking import Digest, finish, space
from tests.paxtune.studies import ask

REWARD = MetricReward('minimize', 'y')


def opened(
    directory: Path | None = None, value: Any = None, store: Any = None, **fields: Any
) -> Study:
    search = Search(REWARD, **({'budget': Budget(8), 'algorithm': Digest()} | fields))
    return open_study(directory, value or space(), search=search, store=store)


def settle(study: Study) -> None:
    """Waits until what is made ahead is there."""
    study._queue._prefetcher.wait()


def run(study: Study) -> list[Trial]:
    while (trial := study.ask()) is not None:
        finish(study, trial)
    return study.trials


def run_to(study: Study, count: int) -> None:
    for _ in range(count):
        finish(study, ask(study))


def seen(trial: Trial) -> str:
    return trial.record.memo['seen']


def was_ahead(trial: Trial) -> bool:
    return trial.record.memo['by'].startswith('suggestions')
