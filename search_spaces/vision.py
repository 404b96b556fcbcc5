"""Models of images, and what is uncertain about them."""

import pyglove as pg

from paxtune.experiment import Tunable
from paxtune.policies import MedianStopping
from paxtune.rewards import MetricReward
from paxtune.searching import Search
from trainer.experiment import Experiment, TrainLoop
from trainer.inputs.digits import NUM_CLASSES, DigitsInput
from trainer.layers import BatchNorm, GroupNorm, ResNet, SmallStem
from trainer.learner import AdamW, Cosine, Learner
from trainer.tasks import ClassificationTask


def DigitsResNet() -> Experiment:
    """A residual network of 78,000 parameters on scikit-learn's handwritten digits.

        python -m trainer.main --exp=vision.DigitsResNet --job_log_dir=runs/digits

    440 steps take about 30 seconds on two cores, and get 98 % of the test images right.
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
            eval_interval_steps=110,
            save_interval_steps=110,
            summary_interval_steps=22,
        ),
        smoke={
            'train_input.batch_size': 8,
            'train.num_train_steps': 4,
            'train.eval_interval_steps': 2,
            'train.save_interval_steps': 2,
        },
    )


def DigitsTunable() -> Tunable:
    """`DigitsResNet`, and how deep and wide it is, how it is normalized, and how fast it learns.

        python -m paxtune.search --exp=vision.DigitsTunable --num_trials=16

    16 trials take about 6 minutes on two cores.
    """
    base = DigitsResNet()
    steps = 220
    stages = pg.oneof([[1, 1], [1, 1, 1], [2, 2]])
    norm = pg.oneof([BatchNorm(), GroupNorm(num_groups=4)])
    base.rebind(
        {
            'task.model.stage_sizes': stages,
            'task.model.width': pg.oneof([8, 16]),
            'task.model.block.norm': norm,
            'task.learner.learning_rate': pg.floatv(3e-4, 3e-2, 'log'),
            'task.learner.optimizer.weight_decay': pg.floatv(1e-3, 1.0, 'log'),
            'task.learner.schedule.decay_steps': steps,
            'train.num_train_steps': steps,
            'train.eval_interval_steps': steps // 4,
            'train.save_interval_steps': steps // 4,
            'train.save_max_to_keep': 1,
        }
    )
    return Tunable(
        **dict(base.sym_init_args),
        search=Search(
            reward=MetricReward(goal='maximize', metric='test/accuracy'),
            num_trials=16,
            early_stopping=MedianStopping(min_trials=4),
        ),
    )
