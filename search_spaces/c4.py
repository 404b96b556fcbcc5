"""Pax's language models on C4, with its values: 1B to 32B parameters, on meshes of TPUs.

    python -m trainer.inspect --exp=c4.C4Spmd1BAdam4Replicas
    python -m trainer.main --exp=c4.C4Spmd1BAdam4Replicas --job_log_dir=runs/c4_1b \\
        --set train_input.data_dir=DIR eval_inputs.eval.data_dir=DIR \\
        train_input.vocabulary=MODEL eval_inputs.eval.vocabulary=MODEL

MODEL is a SentencePiece model of at most 32,000 pieces, the number of token ids of these models;
Pax's own model has 50,257. The batch sizes are global; each of several processes feeds an equal
share (`--set train_input.batch_size=…`).
"""

import dataclasses

from search_spaces.spmd import SpmdLm
from trainer.experiment import Experiment
from trainer.inputs.base import Input
from trainer.inputs.text.c4 import C4Input

VOCABULARY = 'c4_en_32000.model'
"""Placeholder for the path of a SentencePiece model: `--set train_input.vocabulary=MODEL`."""

_EVAL_DOCUMENTS = 24_567
"""Pax's number of evaluation documents, of 364,868."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4SpmdAdam(SpmdLm):
    """A model on C4: rows are packed in training; evaluation has one document per row."""

    checkpoint_every_n_steps: int = 1000
    summary_interval_steps: int = 10

    def _rows(self, is_training: bool) -> Input:
        return C4Input(
            split='train' if is_training else 'validation',
            batch_size=self._batch_size,
            is_training=is_training,
            packing=is_training,
            num_documents=0 if is_training else _EVAL_DOCUMENTS,
            input_random_seed=9876 if is_training else 0,
            sequence_length=self.max_seq_len,
            vocabulary=VOCABULARY,
        )


_1B = C4SpmdAdam(
    num_layers=13, model_dims=2560, num_heads=20, percore_batch_size=32, ici_mesh_shape=(1, 4, 1)
)
_2B = dataclasses.replace(_1B, num_layers=18, model_dims=3072, num_heads=24)
_16B = C4SpmdAdam(
    num_layers=36, model_dims=6144, num_heads=48, percore_batch_size=16, ici_mesh_shape=(1, 16, 2)
)
_32B = C4SpmdAdam(
    num_layers=40, model_dims=8192, num_heads=64, percore_batch_size=8, ici_mesh_shape=(1, 16, 4)
)
_LIMIT_STEPS = 15_000


def C4Spmd1BAdam4Replicas() -> Experiment:
    """1.1 billion parameters on 4 devices, 128 rows per step.

    python -m trainer.inspect --exp=c4.C4Spmd1BAdam4Replicas
    """
    return _1B.made()


def C4Spmd1BAdam4ReplicasLimitSteps() -> Experiment:
    """The same, for 15,000 steps.

    python -m trainer.inspect --exp=c4.C4Spmd1BAdam4ReplicasLimitSteps
    """
    return dataclasses.replace(_1B, num_train_steps=_LIMIT_STEPS).made()


def C4Spmd2BAdam4Replicas() -> Experiment:
    """2.1 billion parameters on 4 devices, 128 rows per step.

    python -m trainer.inspect --exp=c4.C4Spmd2BAdam4Replicas
    """
    return _2B.made()


def C4Spmd2BAdam4ReplicasLimitSteps() -> Experiment:
    """The same, for 15,000 steps.

    python -m trainer.inspect --exp=c4.C4Spmd2BAdam4ReplicasLimitSteps
    """
    return dataclasses.replace(_2B, num_train_steps=_LIMIT_STEPS).made()


def C4Spmd16BAdam32Replicas() -> Experiment:
    """16 billion parameters on 16 × 2 devices, 512 rows per step.

    python -m trainer.inspect --exp=c4.C4Spmd16BAdam32Replicas
    """
    return _16B.made()


def C4Spmd32BAdam64Replicas() -> Experiment:
    """32 billion parameters on 16 × 4 devices, 512 rows per step.

    python -m trainer.inspect --exp=c4.C4Spmd32BAdam64Replicas
    """
    return _32B.made()
