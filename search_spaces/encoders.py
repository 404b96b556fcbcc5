"""Encoders of text, trained on the embedded corpus."""

from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.text.stdlib import StdlibInput
from trainer.layers import (
    Attention,
    Embedding,
    GatedFeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Cosine, Learner
from trainer.tasks import MaskedLanguageModelTask

_BYTES, _BETWEEN_WORDS = 256, b' \n\t()[]{}.,:=\'"'


def StdlibMasked() -> Experiment:
    """A masked language model of bytes, which hides whole words of Python's standard library.

        python -m trainer.main --exp=encoders.StdlibMasked --job_log_dir=runs/masked

    A `TextClassifier` of the same embedding and stack takes its parameters in a warm start.
    """
    steps, length = 400, 64
    block = TransformerBlock(Attention(4, mask='full'), GatedFeedForward(128))
    return Experiment(
        task=MaskedLanguageModelTask(
            model=TransformerLm(Embedding(_BYTES + 1, dims=64), Stack([block], repeats=2)),
            learner=Learner(
                learning_rate=3e-3,
                schedule=Cosine(warmup_steps=40, decay_steps=steps, final_factor=0.1),
                optimizer=AdamW(weight_decay=0.01),
            ),
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
