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
from trainer.experiment import Checkpoints, Evaluation, TrainLoop
from trainer.inputs.base import Batch
from trainer.inputs.synthetic import SyntheticLmInput
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import Learner
from trainer.mesh import Mesh
from trainer.tasks import LanguageModelTask

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
VOCAB = 32


class ChaoticInput(SyntheticLmInput):
    """Reads training batches slowly, and meets its fate in the second half of the training.

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
    block = TransformerBlock(Attention(2), FeedForward(32))
    return Tunable(
        task=LanguageModelTask(
            TransformerLm(Embedding(VOCAB, 16), Stack([block])),
            Learner(learning_rate=pg.floatv(1e-4, 1e-1, 'log')),
        ),
        train_input=_rows(is_training=True, fate=pg.oneof(list(range(NUM_FATES)))),
        eval_inputs={'eval': _rows(num_rows=24)},
        mesh=Mesh(data=1),
        train=TrainLoop(
            num_train_steps=NUM_STEPS,
            evaluation=Evaluation(8),
            checkpoints=Checkpoints(4),
            summary_interval_steps=1,
        ),
        search=Search(
            MetricReward('minimize', 'eval/log_pplx'),
            budget=Budget(8),
            algorithm=RegularizedEvolution(population_size=4, tournament_size=2),
        ),
    )


def _rows(**fields: Any) -> ChaoticInput:
    return ChaoticInput(batch_size=8, sequence_length=8, vocab_size=VOCAB, **fields)
