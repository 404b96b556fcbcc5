"""Language models and their search spaces."""

import os

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.finetuning.docstrings import DocstringInput
from trainer.inputs.mixture import MixtureInput
from trainer.inputs.text.c4 import C4Input
from trainer.inputs.text.stdlib import StdlibInput
from trainer.inputs.tokens.vocabulary import ByteVocabulary
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    FutureTokens,
    GatedFeedForward,
    LoRA,
    RMSNorm,
    Rotary,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Cosine, GlobalNorm, Learner, LinearSchedule, Muon
from trainer.pretrained.families import model_of
from trainer.tasks import LanguageModelTask
from trainer.warm_start_rules import Pretrained

C4_VOCABULARY = ByteVocabulary().vocab_size
PRETRAINED = 'PRETRAINED_MODEL'
"""The variable that names the directory of a pretrained model."""

BITS_PER_BYTE = MetricReward(goal='minimize', metric='eval/bits_per_byte')


def StdlibTunable() -> Tunable:
    """A byte-level model of 0.1M parameters on the sources of Python's standard library.

        python -m paxtune.search --exp=lm.StdlibTunable --num_trials=16

    16 trials take about 5 minutes on two cores. The best reaches about 2.4 bits per byte; a byte
    bigram model has 3.57.
    """
    steps, length = 160, 64
    block = TransformerBlock(
        attention=Attention(num_heads=pg.oneof([2, 4, 8])),
        feed_forward=pg.oneof([FeedForward(hidden_dims=192), GatedFeedForward(hidden_dims=128)]),
    )
    learner = Learner(
        learning_rate=pg.floatv(1e-3, 3e-2, 'log'),
        schedule=Cosine(warmup_steps=pg.oneof([5, 20, 40]), decay_steps=steps, final_factor=0.1),
        optimizer=AdamW(weight_decay=pg.floatv(1e-3, 1.0, 'log')),
    )
    return Tunable(
        task=LanguageModelTask(
            model=TransformerLm(
                embedding=Embedding(vocab_size=256, dims=64),
                stack=Stack([block], repeats=pg.oneof([1, 2])),
            ),
            learner=learner,
        ),
        train_input=StdlibInput(
            batch_size=32, is_training=True, sequence_length=length, split='train'
        ),
        eval_inputs={'eval': StdlibInput(batch_size=64, sequence_length=length, split='eval')},
        train=TrainLoop(
            num_train_steps=steps,
            evaluation=Evaluation(40),
            checkpoints=Checkpoints(40, keep=1),
            summary_interval_steps=10,
        ),
        search=Search(
            objective=BITS_PER_BYTE, budget=Budget(16), scheduler=MedianStopping(min_trials=4)
        ),
        smoke={
            'task.model.embedding.dims': 16,
            'train_input.batch_size': 4,
            'train_input.sequence_length': 16,
            'eval_inputs.eval.max_bytes': 4096,
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
        },
    )


def StdlibFuture() -> Tunable:
    """Searches how many later tokens the small model predicts in training, and their weight.

        python -m paxtune.search --exp=lm.StdlibFuture --num_trials=8

    The reward is that of `StdlibTunable`: the loss of the next token alone.
    """
    made = StdlibTunable()
    block = TransformerBlock(Attention(4), FeedForward(192))
    heads = [
        FutureTokens([block.clone(deep=True) for _ in range(count)], pg.floatv(0.05, 1.0, 'log'))
        for count in (1, 3)
    ]
    model = TransformerLm(
        embedding=Embedding(vocab_size=256, dims=64),
        stack=Stack([block], repeats=2),
        future_tokens=pg.oneof([None, *heads]),
    )
    learner = Learner(
        learning_rate=1e-2,
        schedule=Cosine(warmup_steps=20, decay_steps=160, final_factor=0.1),
        optimizer=AdamW(weight_decay=0.1),
    )
    return made.rebind({'task.model': model, 'task.learner': learner})


def FinetuneTunable() -> Tunable:
    """Low-rank adapters for a pretrained model that learns to summarize functions of Python.

        PRETRAINED_MODEL=models/SmolLM2-135M-Instruct \\
            python -m paxtune.search --exp=lm.FinetuneTunable --num_trials=8

    The directory has `config.json`, safetensors files and `tokenizer.json`. Without the variable,
    the model has the shape of SmolLM2-135M, and no weights to start from. 200 signatures and their
    summaries are the data, with their reverse as a second source. The reward is the loss of
    summaries of other files. Searches rank, targets and learning rate of the adapters, the schedule
    and the mixture.
    """
    directory = os.environ.get(PRETRAINED) or f'${PRETRAINED}'
    model = model_of(directory) if PRETRAINED in os.environ else _smollm2()
    steps, rows = 25, {'sequence_length': 64, 'vocabulary': directory}
    attention = r'stack\.layers_\d+\.attention\.'
    everywhere = r'stack\.layers_\d+\.(attention|feed_forward)\.\w+'
    sources = {
        task: DocstringInput(batch_size=8, is_training=True, split='train', task=task, **rows)
        for task in ('summary', 'signature')
    }
    share = pg.floatv(0.0, 0.5)
    learner = Learner(
        learning_rate=pg.floatv(1e-4, 3e-3, 'log'),
        schedule=pg.oneof(
            [
                kind(warmup_steps=3, decay_steps=steps, final_factor=0.1)
                for kind in (Cosine, LinearSchedule)
            ]
        ),
        optimizer=AdamW(weight_decay=0.0),
        clipping=GlobalNorm(1.0),
    )
    return Tunable(
        task=LanguageModelTask(
            model=model,
            learner=learner,
            adapters=LoRA(
                rank=pg.oneof([4, 8, 16, 32]),
                targets=pg.oneof([[f'{attention}(query|value)'], [everywhere]]),
            ),
        ),
        train_input=MixtureInput(
            batch_size=8,
            is_training=True,
            inputs=sources,
            weights={'summary': 1.0, 'signature': share},
        ),
        eval_inputs={'eval': DocstringInput(batch_size=8, split='eval', num_pairs=40, **rows)},
        train=TrainLoop(
            num_train_steps=steps,
            evaluation=Evaluation(steps),
            checkpoints=Checkpoints(5, keep=1),
            summary_interval_steps=5,
            init_from_checkpoint=Pretrained(directory),
        ),
        search=Search(objective=MetricReward('minimize', 'eval/log_pplx'), budget=Budget(8)),
        smoke={
            'task.model': TransformerLm(
                embedding=Embedding(vocab_size=259, dims=32),
                stack=Stack([TransformerBlock(Attention(2), GatedFeedForward(64))], repeats=2),
            ),
            **{
                f'{path}.{field}': value
                for path in (
                    'train_input.inputs.summary',
                    'train_input.inputs.signature',
                    'eval_inputs.eval',
                )
                for field, value in {
                    'vocabulary': '',
                    'sequence_length': 200,
                    'num_pairs': 8,
                }.items()
            },
            'train.init_from_checkpoint': None,
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
        },
    )


def _smollm2() -> TransformerLm:
    """The shape of SmolLM2-135M."""
    attention = Attention(9, head_dim=64, num_kv_heads=3, position=Rotary(1e5))
    block = TransformerBlock(attention, GatedFeedForward(1536), RMSNorm(1e-5), RMSNorm(1e-5))
    return TransformerLm(
        embedding=Embedding(vocab_size=49152, dims=576, scale_sqrt_depth=False),
        stack=Stack([block], repeats=30),
        final_norm=RMSNorm(1e-5),
    )


def C4Small() -> Experiment:
    """A byte-level model of 127M parameters on C4: 18 layers, width 768, 1,024 bytes per row.

    python -m trainer.main --exp=lm.C4Small --job_log_dir=runs/c4_small
    """
    steps, length = 20_000, 1024
    block = TransformerBlock(attention=Attention(num_heads=12), feed_forward=FeedForward())
    return Experiment(
        task=LanguageModelTask(
            model=TransformerLm(
                embedding=Embedding(vocab_size=C4_VOCABULARY, dims=768),
                stack=Stack([block], repeats=18),
            ),
            learner=Learner(
                learning_rate=6e-4,
                schedule=Cosine(warmup_steps=500, decay_steps=steps, final_factor=0.1),
                optimizer=AdamW(weight_decay=0.1),
            ),
            fprop_dtype='bfloat16',
        ),
        train_input=C4Input(batch_size=64, is_training=True, sequence_length=length, split='train'),
        eval_inputs={
            # All 364,868 documents would take longer than the training between two evaluations.
            'eval': C4Input(
                batch_size=64, sequence_length=length, split='validation', num_documents=5000
            )
        },
        train=TrainLoop(
            num_train_steps=steps,
            evaluation=Evaluation(1000),
            checkpoints=Checkpoints(500),
            summary_interval_steps=50,
        ),
        smoke={
            'task.model.embedding.dims': 96,
            'train_input': StdlibInput(
                batch_size=4, is_training=True, sequence_length=32, split='train'
            ),
            'eval_inputs.eval': StdlibInput(
                batch_size=16, sequence_length=32, split='eval', max_bytes=4096
            ),
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
        },
    )


def C4Tunable() -> Tunable:
    """The search space of `C4Small`: 100M to 142M parameters.

        python -m paxtune.search --exp=lm.C4Tunable --num_trials=64

    Searches the learning rate, the warm-up, the optimizer, weight decay, depth, the number of heads
    and the kind of feed-forward layer.
    """
    base = C4Small()
    base.rebind(
        {
            'task.learner.learning_rate': pg.floatv(1e-4, 3e-3, 'log'),
            'task.learner.schedule.warmup_steps': pg.oneof([200, 500, 1000, 2000]),
            'task.learner.optimizer': pg.oneof(
                [kind(weight_decay=pg.floatv(1e-2, 1.0, 'log')) for kind in (AdamW, Muon)]
            ),
            'task.model.stack.repeats': pg.oneof([14, 16, 18, 20]),
            'task.model.stack.layers[0].attention.num_heads': pg.oneof([6, 8, 12, 16]),
            'task.model.stack.layers[0].feed_forward': pg.oneof(
                [FeedForward(), GatedFeedForward()]
            ),
        }
    )
    return Tunable(
        **dict(base.sym_init_args),
        search=Search(
            objective=BITS_PER_BYTE,
            budget=Budget(64),
        ),
    )
