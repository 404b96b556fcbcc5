"""Pax's language models on C4, with its values: 1B to 175B parameters, on meshes of TPUs.

    python -m trainer.inspect --exp=c4.C4Spmd1BAdam4Replicas
    python -m trainer.main --exp=c4.C4Spmd1BAdam4Replicas --job_log_dir=runs/c4_1b \\
        --set train_input.data_dir=DIR eval_inputs.eval.data_dir=DIR \\
        train_input.vocabulary=MODEL eval_inputs.eval.vocabulary=MODEL

MODEL is a SentencePiece model with at most as many pieces as the model has token ids: 32,000, and
51,200 for GPT-3. Pax's own model has 50,257. The batch sizes are global; each of several processes
feeds an equal share (`--set train_input.batch_size=…`).
"""

import dataclasses

from search_spaces.spmd import SpmdLm, loop
from trainer.experiment import Experiment, TrainLoop
from trainer.inputs.base import Input
from trainer.inputs.text.c4 import C4Input
from trainer.layers import Gaussian, LearnedPositions
from trainer.learner import AdamW, Cosine, GlobalNorm, Learner

_EVAL_DOCUMENTS = 24_567
"""Pax's number of evaluation documents, of 364,868."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4SpmdAdam(SpmdLm):
    """A model on C4: rows are packed in training; evaluation has one document per row.

    Attributes:
        vocabulary: placeholder for the path of a SentencePiece model:
            `--set train_input.vocabulary=MODEL`.
    """

    vocabulary: str = 'c4_en_32000.model'
    train: TrainLoop = dataclasses.field(
        default_factory=lambda: loop(checkpoint_every_n_steps=1000, summary_interval_steps=10)
    )

    def _rows(self, is_training: bool) -> Input:
        return C4Input(
            split='train' if is_training else 'validation',
            batch_size=self._batch_size,
            is_training=is_training,
            packing=is_training,
            num_documents=0 if is_training else _EVAL_DOCUMENTS,
            input_random_seed=9876 if is_training else 0,
            sequence_length=self.max_seq_len,
            vocabulary=self.vocabulary,
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


def _gpt3_adam(
    learning_rate: float = 6e-5, warmup_steps: int = 265, decay_end: int = 108_600
) -> Learner:
    """GPT-3's Adam, for batches of 1,536 rows."""
    return Learner(
        learning_rate,
        Cosine(warmup_steps=warmup_steps, hold_steps=1, decay_steps=decay_end, final_factor=0.1),
        AdamW(b2=0.95, epsilon=1e-8, weight_decay=0.1, weight_decay_on_all=True),
        clipping=GlobalNorm(1.0),
    )


_GPT3 = C4SpmdAdam(
    num_layers=96,
    model_dims=12_288,
    num_heads=96,
    vocab_size=51_200,
    max_seq_len=2048,
    fprop_dtype='float32',
    use_bias=True,
    position_emb=LearnedPositions(16_384, Gaussian(0.006)),
    per_dim_scale=False,
    atten_logit_cap=None,
    softmax_cap_logits=None,
    layernorm_epsilon=1e-5,
    init_std=0.006,
    scale_sqrt_depth=False,
    learner=_gpt3_adam(),
    vocabulary='c4_en_301_5Mexp2_spm.model',
)
_IDS_FOR_24 = 51_216
"""The first number of token ids above 51,200, Pax's, that 12 and 24 devices divide evenly."""


def C4Spmd1BAdam4Replicas() -> Experiment:
    """1.1 billion parameters on 4 devices, 128 rows per step.

    python -m trainer.inspect --exp=c4.C4Spmd1BAdam4Replicas
    """
    return _1B.made()


def C4Spmd1BAdam4ReplicasLimitSteps() -> Experiment:
    """The same, for 15,000 steps.

    python -m trainer.inspect --exp=c4.C4Spmd1BAdam4ReplicasLimitSteps
    """
    return _1B.made().rebind({'train.num_train_steps': _LIMIT_STEPS})


def C4Spmd2BAdam4Replicas() -> Experiment:
    """2.1 billion parameters on 4 devices, 128 rows per step.

    python -m trainer.inspect --exp=c4.C4Spmd2BAdam4Replicas
    """
    return _2B.made()


def C4Spmd2BAdam4ReplicasLimitSteps() -> Experiment:
    """The same, for 15,000 steps.

    python -m trainer.inspect --exp=c4.C4Spmd2BAdam4ReplicasLimitSteps
    """
    return _2B.made().rebind({'train.num_train_steps': _LIMIT_STEPS})


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


def C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas() -> Experiment:
    """GPT-3 with 175 billion parameters in float32, on 64 × 24 devices, 1,536 rows per step.

    python -m trainer.inspect --exp=c4.C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas
    """
    return dataclasses.replace(
        _GPT3,
        vocab_size=_IDS_FOR_24,
        ici_mesh_shape=(1, 64, 24),
        train=loop(
            eval_interval_steps=25,
            checkpoint_every_n_steps=100,
            checkpoint_max_to_keep=100,
            summary_interval_steps=1,
        ),
    ).made()
