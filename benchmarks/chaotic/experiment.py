"""A tiny experiment whose trials take a few seconds, and some of which fail by their decisions."""

import time
from typing import Any

import numpy as np
import pyglove as pg

from paxtune.algorithms import RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from tests.factories.tiny import CountingInput, experiment
from trainer.inputs.base import Batch

NUM_FATES = 20

FATES = {16: 'raises', 17: 'passes its memory', 18: 'hangs', 19: 'NaN'}
"""Faults of trials by their decision; the others have none."""

REASONS = {
    'raises': 'RuntimeError: this trial raises',
    'passes its memory': 'more than --worker_memory allows',
    'hangs': 'it made no step',
    'NaN': 'nan at step',
}
"""Expected words of the study about each."""

NUM_STEPS = 24


class ChaoticInput(CountingInput):
    """Rows that count upwards, slowly; from the middle of the training on its fate shows.

    Attributes:
        fate: see `FATES`.
        seconds: how long a batch takes.
        ballast_gb: GiB that it allocates if that is its fate.
    """

    fate: int = 0
    seconds: float = 0.25
    ballast_gb: float = 1.5

    def get_next(self) -> Batch:
        if not self.is_training:
            return super().get_next()
        time.sleep(self.seconds)
        batch = super().get_next()
        if self.get_position()['batch'] > NUM_STEPS // 2:
            self._meet_fate(batch)
        return batch

    def _meet_fate(self, batch: dict[str, Any]) -> None:
        fate = FATES.get(self.fate)
        if fate == 'raises':
            raise RuntimeError('this trial raises')
        if fate == 'passes its memory':
            # Not zeros, of which Linux has but one page.
            ballast = b'x' * int(self.ballast_gb * 2**30)
            time.sleep(60)
            del ballast
        if fate == 'hangs':
            time.sleep(3600)
        if fate == 'NaN':
            batch['weights'] = batch['weights'] * np.float32('nan')


def Chaotic() -> Tunable:
    """A learning rate, and a fate, evolved."""
    base = experiment(num_steps=NUM_STEPS)
    search = Search(
        MetricReward('minimize', 'eval/log_pplx'),
        budget=Budget(8),
        algorithm=RegularizedEvolution(population_size=4, tournament_size=2),
    )
    made = Tunable(**dict(base.sym_init_args), search=search)
    made.rebind(
        {
            'train_input': ChaoticInput(batch_size=8, is_training=True),
            'train_input.fate': pg.oneof(list(range(NUM_FATES))),
            'task.learner.learning_rate': pg.floatv(1e-4, 1e-1, 'log'),
            'train.evaluation.every': 8,
            'train.checkpoints.every': 4,
        }
    )
    return made
