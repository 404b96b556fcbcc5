"""Checks of a search against its data, its metrics and the lengths of its trials."""

import random
from typing import TYPE_CHECKING

from paxtune.algorithms.encoding.sampling import draw
from paxtune.schedulers import resources
from paxtune.schedulers.rungs import first_rung
from paxtune.search_space.space import Space
from paxtune.study import metric_names, trial_experiments
from paxtune.study.plan import SearchPlan
from trainer.program import setup
from trainer.runtime.signals import Signal
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.experiment import Tunable

_MAX_DRAWS, _SAMPLES = 100, 4


class MissingDataError(UserError):
    """Data of an experiment is not there, or does not suit its task."""


def prepared_data(space: Space) -> dict[str, str]:
    """Computes the fingerprints of the data by input, once the data are known to be there.

    Where decisions are open, these are the data of one of the experiments in the space.

    Raises:
        MissingDataError: data are not there, or do not suit the task.
        UserError: the decisions never fit together.
    """
    found: dict[str, str] = {}
    for name, part in _some_parts(space).items():
        try:
            setup.prepare_inputs(part)
        except Signal:
            pass  # The trials that choose so will report it; others may choose otherwise.
        except UserError as error:
            raise MissingDataError(
                f'sub_experiments.{name}: {error}' if name else str(error)
            ) from error
        prints = {path: data.fingerprint() for path, data in setup.inputs_by_path(part).items()}
        found |= {f'{path}:{name}' if name else path: text for path, text in prints.items()}
    return found


def scheduler_without_effect(plan: SearchPlan) -> list[str]:
    """Lists the fields of the scheduler for which all trials are too short."""
    scheduler = plan.scheduler
    if scheduler is None or not first_rung(plan.space.value):
        return []  # Their lengths differ: some may be long enough.
    return resources.without_effect(scheduler, _some_parts(plan.space))


def validate_metrics(plan: SearchPlan) -> None:
    """Raises UserError if a metric that the search needs is not measured."""
    samples = (_some_parts(plan.space, seed) for seed in range(_SAMPLES))
    metric_names.validate_metrics(plan.search, samples)


def _some_parts(space: Space, seed: int = 0) -> 'dict[str, Tunable]':
    """Returns the experiment of one feasible trial, the same one each time."""
    rng = random.Random(seed)
    for _ in range(_MAX_DRAWS):
        try:
            return trial_experiments.parts_of(space, draw(space.spec, rng))
        # An error of a `check`: a trial with these decisions would fail, another need not.
        except Exception as error:
            reason = error
    raise UserError(f'no experiment was found whose values fit together: {reason}') from reason
