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
import math

from search_spaces.spmd import SpmdLm, Stages, loop
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
_GPT3_SMALL = dataclasses.replace(
    _GPT3,
    num_layers=24,
    model_dims=3072,
    num_heads=24,
    fprop_dtype='bfloat16',
    learner=_gpt3_adam(learning_rate=2e-4),
)
_IDS_FOR_24 = 51_216
"""The first number of token ids above 51,200, Pax's, that 12 and 24 devices divide evenly."""


def _mlperf(
    stages: int,
    fsdp: int,
    tensor: int,
    percore_batch_size: int,
    microbatch_size: int,
    eval_interval_steps: int,
) -> Experiment:
    """GPT-3 in stages, with the hyperparameters that MLPerf prescribes for the batch."""
    rows = percore_batch_size * stages * fsdp * tensor
    return dataclasses.replace(
        _GPT3,
        vocab_size=_GPT3.vocab_size if _GPT3.vocab_size % tensor == 0 else _IDS_FOR_24,
        percore_batch_size=percore_batch_size,
        ici_mesh_shape=(1, fsdp, tensor),
        stages=Stages(num_stages=stages, microbatch_size=microbatch_size),
        learner=_gpt3_adam(
            learning_rate=2e-5 if rows <= 3584 else 3e-5,
            warmup_steps=math.ceil(265 * 1536 / rows),
            decay_end=math.ceil(108_600 * 1536 / rows),
        ),
        train=loop(
            eval_interval_steps=eval_interval_steps,
            checkpoint_every_n_steps=2 * eval_interval_steps,
            checkpoint_max_to_keep=100,
            summary_interval_steps=1,
        ),
    ).made()


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


def C4SpmdPipelineGpt3SmallAdam8Replicas() -> Experiment:
    """2.9 billion parameters in 2 stages of 2 × 2 devices, 512 rows per step.

        python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3SmallAdam8Replicas

    Pax calls it GPT-3 XL, whose width is 2,048 in the paper; here it is 3,072.
    """
    return dataclasses.replace(
        _GPT3_SMALL,
        percore_batch_size=64,
        ici_mesh_shape=(1, 2, 2),
        stages=Stages(num_stages=2, microbatch_size=8),
        train=loop(
            eval_interval_steps=10,
            checkpoint_every_n_steps=200,
            checkpoint_max_to_keep=1000,
            summary_interval_steps=5,
        ),
    ).made()


def C4SpmdPipelineGpt3SmallAdam64Replicas() -> Experiment:
    """The same model in 4 stages of 4 × 4 devices; further groups of 64 devices are replicas.

        python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3SmallAdam64Replicas --devices=128

    The first version of Pax had these values, and its documents run them on a v4-128.
    """
    made = dataclasses.replace(
        _GPT3_SMALL,
        percore_batch_size=8,
        ici_mesh_shape=(1, 4, 4),
        stages=Stages(num_stages=4, microbatch_size=16),
        train=loop(
            checkpoint_every_n_steps=200, checkpoint_max_to_keep=1000, summary_interval_steps=1
        ),
    ).made()
    return made.rebind({'mesh.data': -1})


def C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas() -> Experiment:
    """GPT-3 175B in float32, in 8 stages of 8 × 12 devices, 1,536 rows per step.

    python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas
    """
    return _mlperf(
        stages=8,
        fsdp=8,
        tensor=12,
        percore_batch_size=2,
        microbatch_size=8,
        eval_interval_steps=16,
    )


def C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas() -> Experiment:
    """GPT-3 175B in float32, in 8 stages of 8 × 8 devices, 2,048 rows per step.

    python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas
    """
    return _mlperf(
        stages=8,
        fsdp=8,
        tensor=8,
        percore_batch_size=4,
        microbatch_size=8,
        eval_interval_steps=12,
    )


def C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas() -> Experiment:
    """GPT-3 175B in float32, in 4 stages of 16 × 12 devices, 3,072 rows per step.

    python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas
    """
    return _mlperf(
        stages=4,
        fsdp=16,
        tensor=12,
        percore_batch_size=4,
        microbatch_size=16,
        eval_interval_steps=8,
    )


def C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas() -> Experiment:
    """GPT-3 175B in float32, in 8 stages of 8 × 16 devices, 4,096 rows per step.

    python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas
    """
    return _mlperf(
        stages=8,
        fsdp=8,
        tensor=16,
        percore_batch_size=4,
        microbatch_size=8,
        eval_interval_steps=6,
    )


def C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas() -> Experiment:
    """GPT-3 175B in float32, in 4 stages of 16 × 16 devices, 8,192 rows per step.

    python -m trainer.inspect --exp=c4.C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas
    """
    return _mlperf(
        stages=4,
        fsdp=16,
        tensor=16,
        percore_batch_size=8,
        microbatch_size=16,
        eval_interval_steps=3,
    )
