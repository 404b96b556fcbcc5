"""Pax's language models on random tokens, to test an installation and its speed."""

import dataclasses

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from search_spaces.spmd import Stages, SyntheticLm, adam, loop
from trainer.experiment import Experiment
from trainer.layers import FeedForward, GatedFeedForward

_TEST = SyntheticLm(
    num_layers=2,
    model_dims=64,
    num_heads=8,
    dims_per_head=8,
    percore_batch_size=4,
    learner=adam(learning_rate=2.5e-4, decay_end=100_000),
)
_2B = dataclasses.replace(
    _TEST,
    num_layers=18,
    model_dims=3072,
    num_heads=24,
    dims_per_head=128,
    percore_batch_size=8,
    ici_mesh_shape=(1, 4, 1),
)
_2B_ON_2_SLICES = dataclasses.replace(_2B, percore_batch_size=16, num_slices=2)
_PIPELINE_9B = dataclasses.replace(
    _2B,
    num_layers=48,
    model_dims=4096,
    num_heads=32,
    fprop_dtype='float32',
    ici_mesh_shape=(4, 1, 1),
    stages=Stages(num_stages=16, microbatch_size=4),
)
_PIPELINE_175B = dataclasses.replace(
    _2B,
    num_layers=96,
    model_dims=12_288,
    num_heads=96,
    max_seq_len=2048,
    percore_batch_size=0.75,
    ici_mesh_shape=(1, 1, 16),
    num_slices=8,
    stages=Stages(num_stages=8, microbatch_size=2),
)
_PIPELINE_2B_ON_2_SLICES = dataclasses.replace(
    _2B_ON_2_SLICES, stages=Stages(num_stages=2, microbatch_size=4)
)
_32B = dataclasses.replace(
    _2B,
    num_layers=40,
    model_dims=8192,
    num_heads=64,
    ici_mesh_shape=(1, 16, 4),
    save_names=('context', 'output'),
)
_64B = dataclasses.replace(
    _32B,
    num_layers=51,
    model_dims=10_240,
    num_heads=80,
    percore_batch_size=4,
    ici_mesh_shape=(1, 16, 8),
)
_128B = dataclasses.replace(
    _2B,
    num_layers=71,
    model_dims=12_288,
    num_heads=96,
    percore_batch_size=4,
    ici_mesh_shape=(1, 64, 4),
)
_256B = dataclasses.replace(
    _128B, num_layers=80, model_dims=16_384, num_heads=128, ici_mesh_shape=(1, 64, 8)
)
_512B = dataclasses.replace(
    _128B, num_layers=102, model_dims=20_480, num_heads=160, ici_mesh_shape=(1, 64, 16)
)
_1024B = dataclasses.replace(
    _128B,
    num_layers=142,
    model_dims=24_576,
    num_heads=192,
    percore_batch_size=2,
    ici_mesh_shape=(1, 256, 8),
)
_TRANSFORMER = SyntheticLm(
    num_layers=32,
    model_dims=1024,
    num_heads=16,
    dims_per_head=64,
    percore_batch_size=16,
    fprop_dtype='float32',
    use_repeated_layer=False,
    softmax_cap_logits=None,
)


def LmCloudSpmdTest() -> Experiment:
    """2.1 million parameters, nearly all of them in the embedding, on one device.

    python -m trainer.main --exp=lm_cloud.LmCloudSpmdTest --job_log_dir=runs/test
    """
    return _TEST.made()


def LmCloudSpmd2B() -> Experiment:
    """2.1 billion parameters on 4 devices, 32 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd2B
    """
    return _2B.made()


def LmCloudSpmd2BLimitSteps() -> Experiment:
    """The same, for 300 steps.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd2BLimitSteps
    """
    return _2B.made().rebind({'train.num_train_steps': 300})


def LmCloudSpmdMultislice2B() -> Experiment:
    """2.1 billion parameters on two slices of 4 devices, each with all of them: 128 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmdMultislice2B
    """
    return _2B_ON_2_SLICES.made()


def LmCloudSpmd32B() -> Experiment:
    """32 billion parameters on 16 × 4 devices, 512 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd32B
    """
    return _32B.made()


def LmCloudSpmd64B() -> Experiment:
    """64 billion parameters on 16 × 8 devices, 512 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd64B
    """
    return _64B.made()


def LmCloudSpmd128B() -> Experiment:
    """129 billion parameters on 64 × 4 devices, 1,024 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd128B
    """
    return _128B.made()


def LmCloudSpmd256B() -> Experiment:
    """258 billion parameters on 64 × 8 devices, 2,048 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd256B
    """
    return _256B.made()


def LmCloudSpmd512B() -> Experiment:
    """514 billion parameters on 64 × 16 devices, 4,096 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd512B
    """
    return _512B.made()


def LmCloudSpmd1024B() -> Experiment:
    """1,030 billion parameters on 256 × 8 devices, 4,096 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmd1024B
    """
    return _1024B.made()


def LmCloudSpmdPipeline9B() -> Experiment:
    """9.8 billion parameters in float32, in 16 stages of 4 devices, 512 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmdPipeline9B
    """
    return _PIPELINE_9B.made()


def LmCloudSpmdPipeline175B() -> Experiment:
    """174 billion parameters in 8 stages, each a slice of 16 devices, 96 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmdPipeline175B
    """
    return _PIPELINE_175B.made()


def LmCloudSpmdPipelineMultislice2B() -> Experiment:
    """2.1 billion parameters in 2 stages, each a slice of 4 devices, 128 rows per step.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmdPipelineMultislice2B
    """
    return _PIPELINE_2B_ON_2_SLICES.made()


def LmCloudSpmdPipelineMultislice2BCircular() -> Experiment:
    """The same with 3 turns of each microbatch through the stages.

    python -m trainer.inspect --exp=lm_cloud.LmCloudSpmdPipelineMultislice2BCircular
    """
    stages = Stages(num_stages=2, microbatch_size=8, circular_repeat=3)
    return dataclasses.replace(_PIPELINE_2B_ON_2_SLICES, stages=stages).made()


def LmCloudTransformerAdam() -> Experiment:
    """0.4 billion parameters in float32, 16 rows per step on one device.

    Pax divides the batch with `pmap`. On 4 devices:

    python -m trainer.inspect --exp=lm_cloud.LmCloudTransformerAdam \\
        --set mesh.data=4 train_input.batch_size=64 eval_inputs.eval.batch_size=64
    """
    return _with_biases(_TRANSFORMER)


def LmCloudTransformerAdamTest() -> Experiment:
    """Two layers of the same.

    python -m trainer.inspect --exp=lm_cloud.LmCloudTransformerAdamTest
    """
    return _with_biases(dataclasses.replace(_TRANSFORMER, num_layers=2))


def LmCloudTransformerAdamLimitSteps() -> Experiment:
    """Ten layers of the same, for 2,000 steps.

    python -m trainer.inspect --exp=lm_cloud.LmCloudTransformerAdamLimitSteps
    """
    limited = dataclasses.replace(_TRANSFORMER, num_layers=10, train=loop(num_train_steps=2000))
    return _with_biases(limited)


def LmCloudSpmdTestTunable() -> Tunable:
    """A search space of `LmCloudSpmdTest`: learning rate, heads and feed-forward layers, 100 steps.

        python -m paxtune.search --exp=lm_cloud.LmCloudSpmdTestTunable --num_trials=8

    It only tests the search: random tokens have nothing to learn but their frequencies.
    """
    base = LmCloudSpmdTest()
    steps = 100
    kinds = [FeedForward(hidden_dims=256), GatedFeedForward(hidden_dims=168)]
    base.rebind(
        {
            'task.learner.learning_rate': pg.floatv(1e-4, 1e-2, 'log'),
            'task.learner.schedule.warmup_steps': 10,
            'task.learner.schedule.decay_steps': steps,
            'task.model.stack.layers[0].attention.num_heads': pg.oneof([4, 8]),
            'task.model.stack.layers[0].feed_forward': pg.oneof(kinds),
            'train.num_train_steps': steps,
            'train.evaluation.every': steps // 4,
            'train.checkpoints.every': steps // 4,
            'train.checkpoints.keep': 1,
            'train.summary_interval_steps': 10,
        }
    )
    # The single values of a smoke run cannot replace decisions.
    decided = ('num_heads', 'hidden_dims')
    small = {path: value for path, value in base.smoke.items() if not path.endswith(decided)}
    return Tunable(
        **{**dict(base.sym_init_args), 'smoke': small},
        search=Search(
            objective=MetricReward(goal='minimize', metric='eval/log_pplx'),
            budget=Budget(8),
            scheduler=MedianStopping(min_trials=4),
        ),
    )


def _with_biases(model: SyntheticLm) -> Experiment:
    return model.made().rebind({'task.model.stack.layers[0].feed_forward.bias': 'zeros'})
