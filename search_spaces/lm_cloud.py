"""Pax's language models on random tokens, to test an installation and its speed."""

import dataclasses

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from search_spaces.spmd import SyntheticLm, adam
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
    return dataclasses.replace(_2B, num_train_steps=300).made()


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
    return _with_biases(dataclasses.replace(_TRANSFORMER, num_layers=10, num_train_steps=2000))


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
