"""The trials of the comparison as experiments of paxtune."""

import pyglove as pg

from benchmarks.turnover import setting as fixed
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from trainer.experiment import Evaluation, TrainLoop
from trainer.inputs.text.stdlib import StdlibInput
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Cosine, Learner
from trainer.tasks import LanguageModelTask


def numbers() -> Tunable:
    """A model of one structure; learning rate, weight decay and warm-up are searched."""
    steps = 50
    block = TransformerBlock(Attention(num_heads=fixed.HEADS), FeedForward())
    return Tunable(
        task=LanguageModelTask(
            TransformerLm(
                Embedding(fixed.VOCAB, fixed.DIMS),
                Stack([block], repeats=fixed.LAYERS, scan='never'),
            ),
            Learner(
                learning_rate=pg.floatv(*fixed.RATES, 'log'),
                schedule=Cosine(
                    warmup_steps=pg.oneof(list(fixed.WARMUPS)),
                    decay_steps=steps,
                    final_factor=fixed.FINAL,
                ),
                optimizer=AdamW(
                    b1=fixed.B1,
                    b2=fixed.B2,
                    epsilon=fixed.EPSILON,
                    weight_decay=pg.floatv(*fixed.DECAYS, 'log'),
                ),
            ),
        ),
        train_input=StdlibInput(
            batch_size=fixed.BATCH, is_training=True, sequence_length=fixed.LENGTH, split='train'
        ),
        eval_inputs={
            'eval': StdlibInput(
                batch_size=fixed.EVAL_BATCH,
                sequence_length=fixed.LENGTH,
                split='eval',
                max_bytes=16_384,
            )
        },
        train=TrainLoop(num_train_steps=steps, evaluation=Evaluation(steps // 2)),
        search=Search(MetricReward('minimize', 'eval/loss'), Budget(32)),
    )


def structures() -> Tunable:
    """Tiny models of many structures, with few steps: most trials compile programs of their own."""
    tunable = numbers()
    tunable.rebind(
        {
            'task.learner.learning_rate': 1e-3,
            'task.learner.optimizer.weight_decay': 0.1,
            'task.learner.schedule.warmup_steps': 1,
            'task.learner.schedule.decay_steps': 4,
            'task.model.embedding.dims': pg.oneof([8, 16, 24, 32]),
            'task.model.stack.repeats': pg.oneof([1, 2, 3]),
            'task.model.stack.layers[0].attention.num_heads': pg.oneof([1, 2, 4]),
            'task.model.stack.layers[0].feed_forward.hidden_dims': pg.oneof(
                [16, 24, 32, 40, 48, 56, 64, 72]
            ),
            'train_input.batch_size': 2,
            'train_input.sequence_length': 16,
            'eval_inputs.eval.batch_size': 2,
            'eval_inputs.eval.sequence_length': 16,
            'eval_inputs.eval.max_bytes': 65,
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'search.budget.trials': 200,
        }
    )
    return tunable
