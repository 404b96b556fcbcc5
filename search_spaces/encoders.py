"""Encoders of text, trained on the embedded corpus."""

from typing import Any, Literal

import numpy as np

from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.arrays.arrays import Arrays, ArraysInput, arrays_of
from trainer.inputs.text.stdlib import StdlibInput
from trainer.layers import (
    Attention,
    Embedding,
    GatedFeedForward,
    Linear,
    Stack,
    TextClassifier,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Cosine, Learner
from trainer.tasks import ClassificationTask, MaskedLanguageModelTask, RegressionTask
from trainer.tasks.supervised import SupervisedTask

_BYTES, _BETWEEN_WORDS = 256, b' \n\t()[]{}.,:=\'"'
_INDENT = 4


def StdlibMasked() -> Experiment:
    """A masked language model of bytes, which hides whole words of Python's standard library.

        python -m trainer.main --exp=encoders.StdlibMasked --job_log_dir=runs/masked

    `StdlibChange` and `StdlibDepth` can take its parameters in a warm start.
    """
    steps, length = 400, 64
    return Experiment(
        task=MaskedLanguageModelTask(
            model=TransformerLm(**_encoder()),
            learner=_learner(steps),
            mask_id=_BYTES,
            word_separators=list(_BETWEEN_WORDS),
        ),
        train_input=StdlibInput(
            batch_size=32, is_training=True, sequence_length=length, split='train'
        ),
        eval_inputs={
            'eval': StdlibInput(
                batch_size=64, sequence_length=length, split='eval', max_bytes=65_536
            )
        },
        train=TrainLoop(steps, Evaluation(100), Checkpoints(100, keep=1)),
        smoke={
            'task.model.embedding.dims': 16,
            'train_input.batch_size': 4,
            'train_input.sequence_length': 16,
            'eval_inputs.eval.sequence_length': 16,
            'eval_inputs.eval.max_bytes': 4096,
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
        },
    )


class LinesInput(ArraysInput):
    """Lines of the embedded corpus, to predict the indentation of the next line.

    Batches hold `ids` [B, T], the last bytes of a line, and 0 for padding. `change` [B] is 0 where
    the next line is indented less, 1 as much, 2 more. `depth` [B] has its levels of indentation.

    Attributes:
        split: 'train' or 'eval'.
        sequence_length: bytes of a line.
        max_bytes: reads at most this many bytes of the split; 0 for all.
    """

    split: Literal['train', 'eval']
    sequence_length: int = 64
    max_bytes: int = 0

    def read(self) -> Arrays:
        text = StdlibInput(1, split=self.split, max_bytes=self.max_bytes, sequence_length=1)
        lines = [line for line in text.corpus().data.tobytes().split(b'\n') if line.strip()]
        indents = np.array([len(line) - len(line.lstrip(b' ')) for line in lines])
        ids = np.zeros((len(lines) - 1, self.sequence_length), np.int32)
        for row, line in zip(ids, lines, strict=False):
            last = np.frombuffer(line[-self.sequence_length :], np.uint8)
            row[: len(last)] = last
        change = np.sign(indents[1:] - indents[:-1]) + 1
        return arrays_of({'ids': ids, 'change': change, 'depth': indents[1:] / _INDENT})

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return ids.astype(np.uint8).tobytes().decode(errors='replace')


def StdlibChange() -> Experiment:
    """Classifies lines of code: the next line is indented less, as much, or more.

        python -m trainer.main --exp=encoders.StdlibChange --job_log_dir=runs/change

    The most frequent class alone has an accuracy of about 0.56 on the eval split.
    """
    return _of_lines(ClassificationTask, 'change', outputs=3)


def StdlibDepth() -> Experiment:
    """Predicts the levels of indentation of the next line, a regression.

        python -m trainer.main --exp=encoders.StdlibDepth --job_log_dir=runs/depth

    The mean alone has a squared error of about 2.7 on the eval split.
    """
    return _of_lines(RegressionTask, 'depth', outputs=1)


def _of_lines(kind: type[SupervisedTask], label: str, outputs: int) -> Experiment:
    steps = 400
    return Experiment(
        task=kind(
            model=TextClassifier(**_encoder(), head=Linear(outputs)),
            learner=_learner(steps),
            input_feature='ids',
            padding_feature='ids',
            label_feature=label,
        ),
        train_input=LinesInput(32, is_training=True, split='train', max_bytes=4_000_000),
        eval_inputs={'eval': LinesInput(64, split='eval', max_bytes=100_000)},
        train=TrainLoop(steps, Evaluation(100), Checkpoints(100, keep=1)),
        smoke={
            'task.model.embedding.dims': 16,
            'train_input.batch_size': 4,
            'train_input.max_bytes': 4096,
            'eval_inputs.eval.max_bytes': 4096,
            'train.num_train_steps': 4,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
        },
    )


def _encoder() -> dict[str, Any]:
    block = TransformerBlock(Attention(4, mask='full'), GatedFeedForward(128))
    return {'embedding': Embedding(_BYTES + 1, dims=64), 'stack': Stack([block], repeats=2)}


def _learner(steps: int) -> Learner:
    return Learner(
        learning_rate=3e-3,
        schedule=Cosine(warmup_steps=40, decay_steps=steps, final_factor=0.1),
        optimizer=AdamW(weight_decay=0.01),
    )
