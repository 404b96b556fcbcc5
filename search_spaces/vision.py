"""Image models and their search spaces."""

from typing import Any

import pyglove as pg

from paxtune.algorithms import RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.arrays.digits import NUM_CLASSES, DigitsInput
from trainer.inputs.arrays.images import ImagesInput
from trainer.layers import (
    Activate,
    BatchNorm,
    BottleneckBlock,
    Chain,
    Conv2D,
    Flatten,
    GlobalPool,
    GroupNorm,
    InvertedBottleneck,
    Layer,
    Linear,
    Pool2D,
    ResNet,
    SmallStem,
)
from trainer.learner import SGD, AdamW, Cosine, Learner, NormMetrics, PiecewiseConstant
from trainer.mesh import Mesh
from trainer.tasks import ClassificationTask


def DigitsResNet() -> Experiment:
    """A residual network of 78,000 parameters on scikit-learn's handwritten digits.

        python -m trainer.main --exp=vision.DigitsResNet --job_log_dir=runs/digits

    440 steps take about 30 seconds on two cores, and classify 98 % of the test images correctly.
    """
    steps = 440
    return Experiment(
        task=ClassificationTask(
            model=ResNet(
                num_classes=NUM_CLASSES, stage_sizes=[1, 1, 1], width=16, stem=SmallStem()
            ),
            learner=Learner(
                learning_rate=3e-3,
                schedule=Cosine(warmup_steps=20, decay_steps=steps, final_factor=0.01),
                optimizer=AdamW(weight_decay=0.1),
            ),
        ),
        train_input=DigitsInput(batch_size=64, is_training=True, split='train', max_shift=1),
        eval_inputs={'test': DigitsInput(batch_size=120, split='test')},
        train=TrainLoop(
            num_train_steps=steps,
            evaluation=Evaluation(110),
            checkpoints=Checkpoints(110),
            summary_interval_steps=22,
        ),
        smoke={
            'train_input.batch_size': 8,
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
        },
    )


_SHORT_RUN = {
    'task.learner.schedule.decay_steps': 220,
    'train.num_train_steps': 220,
    'train.evaluation.every': 55,
    'train.checkpoints.every': 55,
    'train.checkpoints.keep': 1,
}


def DigitsTunable() -> Tunable:
    """The search space of `DigitsResNet`: depth, width, normalization and learning rate.

        python -m paxtune.search --exp=vision.DigitsTunable --num_trials=16

    16 trials take about 6 minutes on two cores.
    """
    base = DigitsResNet()
    base.rebind(
        _SHORT_RUN
        | {
            'task.model.stage_sizes': pg.oneof([[1, 1], [1, 1, 1], [2, 2]]),
            'task.model.width': pg.oneof([8, 16]),
            'task.model.block.norm': pg.oneof([BatchNorm(), GroupNorm(num_groups=4)]),
            'task.learner.learning_rate': pg.floatv(3e-4, 3e-2, 'log'),
            'task.learner.optimizer.weight_decay': pg.floatv(1e-3, 1.0, 'log'),
        }
    )
    return Tunable(**dict(base.sym_init_args), search=_search())


def DigitsNas() -> Tunable:
    """Six inverted bottlenecks, each with its own kernel, expansion and skip.

        python -m paxtune.search --exp=vision.DigitsNas --num_trials=16

    The space of MnasNet (Tan et al. 2019) at a small scale. A network has at most half the
    parameters of `DigitsResNet`.
    """
    base = DigitsResNet()
    blocks = [
        _inverted_bottleneck(channels, stride)
        for channels in (16, 32, 64)
        for stride in ((1 if channels == 16 else 2), 1)
    ]
    base.rebind(
        _SHORT_RUN
        | {
            'task.model': Chain(
                [
                    Conv2D(16, bias='zeros'),
                    *blocks,
                    GlobalPool(),
                    Linear(NUM_CLASSES, bias='zeros', axes=['mlp', 'classes']),
                ]
            ),
            'task.learner.learning_rate': pg.floatv(1e-3, 3e-2, 'log'),
        }
    )
    search = _search()
    search.rebind(
        algorithm=RegularizedEvolution(population_size=6, tournament_size=3),
        limits=[Limit('num_params', at_most=39_000)],
    )
    return Tunable(**dict(base.sym_init_args), search=search)


def _inverted_bottleneck(channels: int, stride: int) -> InvertedBottleneck:
    return InvertedBottleneck(
        channels=channels,
        expansion=pg.oneof([1.0, 2.0, 4.0]),
        kernel_size=pg.oneof([3, 5]),
        stride=stride,
        skip=pg.oneof([True, False]),
    )


def _search() -> Search:
    return Search(
        objective=MetricReward(goal='maximize', metric='test/accuracy'),
        budget=Budget(16),
        scheduler=MedianStopping(min_trials=4),
    )


def MnistExperiment() -> Experiment:
    """Pax's MnistExperiment: a convolutional network of 0.8 million parameters, 1,000 steps.

        python -m trainer.main --exp=vision.MnistExperiment --job_log_dir=runs/mnist \\
            --set train_input.data_dir=DIR eval_inputs.test.data_dir=DIR

    DIR has MNIST in the format of `trainer.inputs.ImagesInput`: train_images.npy and so on.
    """
    layers = [
        *_convolution(32),
        *_convolution(64),
        Flatten(),
        Linear(256, bias='zeros'),
        Activate(),
        Linear(10, bias='zeros', axes=['mlp', 'classes']),
    ]
    return Experiment(
        task=ClassificationTask(
            model=Chain(layers),
            learner=Learner(learning_rate=0.01, optimizer=SGD(momentum=0.1), clipping=None),
        ),
        train_input=_images('train', 'mnist', [28, 28, 1], 1024),
        eval_inputs={'test': _images('test', 'mnist', [28, 28, 1], 1024)},
        mesh=Mesh(data=1),
        train=TrainLoop(num_train_steps=1000, summary_interval_steps=100),
        smoke=_smoke() | {'task.model.layers[0].channels': 8, 'task.model.layers[3].channels': 8},
    )


def MnistTunable() -> Tunable:
    """The search space of `MnistExperiment`: learning rate, momentum, widths and activation.

    python -m paxtune.search --exp=vision.MnistTunable --num_trials=16
    """
    base = MnistExperiment()
    base.rebind(
        {
            'task.learner.learning_rate': pg.floatv(1e-3, 1.0, 'log'),
            'task.learner.optimizer.momentum': pg.floatv(0.0, 0.95),
            'task.model.layers[0].channels': pg.oneof([16, 32, 64]),
            'task.model.layers[3].channels': pg.oneof([32, 64, 128]),
            'task.model.layers[8].activation': pg.oneof(['relu', 'gelu', 'squared_relu']),
            'train.checkpoints.keep': 1,
        }
    )
    return Tunable(**{**dict(base.sym_init_args), 'smoke': _smoke()}, search=_search())


def ResNet50Pjit() -> Experiment:
    """Pax's ResNet50Pjit: 25.6 million parameters, 90 epochs of ImageNet on 8 devices.

        python -m trainer.main --exp=vision.ResNet50Pjit --job_log_dir=runs/resnet50 \\
            --set train_input.data_dir=DIR eval_inputs.test.data_dir=DIR

    "ImageNet in 1 hour" (Goyal et al. 2017). DIR has images in the format of
    `trainer.inputs.ImagesInput`, such as 256 × 256 pixels, which takes crops of 224 × 224.
    """
    batch_size = 512
    epoch = 1_281_167 // batch_size
    return Experiment(
        task=ClassificationTask(
            model=ResNet(num_classes=1000, stage_sizes=[3, 4, 6, 3], block=BottleneckBlock()),
            learner=Learner(
                learning_rate=0.1 * batch_size / 256,
                schedule=PiecewiseConstant(
                    warmup_steps=5 * epoch,
                    boundaries=[30 * epoch, 60 * epoch, 80 * epoch],
                    values=[1.0, 0.1, 0.01, 0.001],
                ),
                optimizer=SGD(
                    momentum=0.9, nesterov=True, l2_regularizer_weight=1e-4, skip_lp_1d_vectors=True
                ),
                clipping=None,
                norm_metrics=NormMetrics(parameters=True),
            ),
            fprop_dtype='bfloat16',
        ),
        train_input=_images('train', 'imagenet', [224, 224, 3], batch_size, flip=True),
        eval_inputs={'test': _images('test', 'imagenet', [224, 224, 3], batch_size)},
        mesh=Mesh(data=8),
        train=TrainLoop(
            num_train_steps=90 * epoch,
            evaluation=Evaluation(epoch),
            checkpoints=Checkpoints(5000, keep=1000),
            summary_interval_steps=1000,
        ),
        smoke=_smoke()
        | {
            'task.model.num_classes': NUM_CLASSES,
            'task.model.stage_sizes': [1, 1],
            'task.model.width': 4,
            'task.fprop_dtype': 'float32',
        },
    )


def _convolution(channels: int) -> list[Layer]:
    """A 3×3 convolution with a bias, and 2×2 average pooling."""
    return [Conv2D(channels, bias='zeros'), Activate(), Pool2D('average')]


def _images(
    split: str, name: str, image_shape: list[int], batch_size: int, flip: bool = False
) -> ImagesInput:
    return ImagesInput(
        data_dir=f'data/{name}',
        split=split,
        image_shape=image_shape,
        batch_size=batch_size,
        is_training=split == 'train',
        flip=flip,
    )


def _smoke() -> dict[str, Any]:
    """A run of two steps on the embedded digits."""
    return {
        'train_input': DigitsInput(batch_size=8, is_training=True, split='train'),
        'eval_inputs.test': DigitsInput(batch_size=120, split='test'),
        'mesh': Mesh(),
        'train.num_train_steps': 2,
        'train.evaluation.every': 2,
        'train.checkpoints.every': 2,
        'train.summary_interval_steps': 1,
    }
