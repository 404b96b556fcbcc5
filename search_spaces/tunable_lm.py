"""A small tunable experiment: the one in the README.

    python -m paxtune.search --exp=tunable_lm.Tiny

8 trials take a minute on two cores; the best reaches about 3.7 bits per byte.
"""

import pyglove as pg

from paxtune import Budget, MetricReward, Search, Tunable
from trainer.experiment import Checkpoints, Evaluation, TrainLoop
from trainer.inputs import StdlibInput
from trainer.layers import Attention, Embedding, FeedForward, Stack, TransformerBlock, TransformerLm
from trainer.learner import Cosine, Learner
from trainer.tasks import LanguageModelTask


def Tiny() -> Tunable:
    block = TransformerBlock(Attention(num_heads=pg.oneof([2, 4])), FeedForward(hidden_dims=128))
    model = TransformerLm(Embedding(256, dims=32), Stack([block], repeats=pg.oneof([1, 2])))
    learner = Learner(pg.floatv(1e-3, 3e-2, 'log'), Cosine(warmup_steps=10, decay_steps=60))
    data = {'batch_size': 16, 'sequence_length': 64}
    return Tunable(
        task=LanguageModelTask(model, learner),
        train_input=StdlibInput(split='train', is_training=True, **data),
        eval_inputs={'eval': StdlibInput(split='eval', **data)},
        train=TrainLoop(num_train_steps=60, evaluation=Evaluation(20), checkpoints=Checkpoints(20)),
        search=Search(MetricReward('minimize', 'eval/bits_per_byte'), Budget(8)),
        smoke={'train.num_train_steps': 2, 'eval_inputs.eval.max_bytes': 4096},
    )
