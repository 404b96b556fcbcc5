"""Hybrids: language models of blocks with attention and blocks with a state."""

from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.synthetic import SyntheticLmInput
from trainer.layers import (
    RGLRU,
    Attention,
    Embedding,
    GatedFeedForward,
    Layer,
    Rotary,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Cosine, GlobalNorm, Learner
from trainer.mesh import Mesh
from trainer.tasks import LanguageModelTask

_PERIOD = 3
"""Two blocks with RG-LRU, then one with local attention."""


def RecurrentGemma2B() -> Experiment:
    """RecurrentGemma with 2.7 billion parameters (Botev et al. 2024), on random tokens.

        python -m trainer.inspect --exp=hybrids.RecurrentGemma2B

    The values are published; data and schedule are not. The bias after attention and the one of the
    convolution are left out.
    """
    width, num_layers, vocab_size, length = 2560, 26, 256_000, 8192

    def block(index: int) -> TransformerBlock:
        mixer: Layer = RGLRU(num_heads=10, width=width, bias='zeros')
        if index % _PERIOD == _PERIOD - 1:
            mixer = Attention(
                num_heads=10,
                num_kv_heads=1,
                head_dim=256,
                position=Rotary(fraction=0.5),
                window=2048,
            )
        feed_forward = GatedFeedForward(hidden_dims=3 * width, activation='gelu', bias='zeros')
        return TransformerBlock(attention=mixer, feed_forward=feed_forward)

    def rows(batch_size: int, length: int, is_training: bool = False) -> SyntheticLmInput:
        return SyntheticLmInput(
            batch_size=batch_size,
            is_training=is_training,
            sequence_length=length,
            vocab_size=vocab_size if length > 8 else 16,
            num_rows=1024 if length > 8 else 8,
        )

    return Experiment(
        task=LanguageModelTask(
            model=TransformerLm(
                embedding=Embedding(vocab_size=vocab_size, dims=width),
                stack=Stack([block(index) for index in range(num_layers)]),
                logits_cap=30.0,
            ),
            learner=Learner(
                learning_rate=4e-4,
                schedule=Cosine(warmup_steps=1000, decay_steps=100_000, final_factor=0.1),
                optimizer=AdamW(b2=0.95, weight_decay=0.1),
                clipping=GlobalNorm(1.0),
            ),
            fprop_dtype='bfloat16',
        ),
        train_input=rows(batch_size=64, length=length, is_training=True),
        eval_inputs={'eval': rows(batch_size=64, length=length)},
        mesh=Mesh(data=1, fsdp=-1),
        train=TrainLoop(
            num_train_steps=100_000,
            evaluation=Evaluation(1000),
            checkpoints=Checkpoints(1000),
            summary_interval_steps=50,
        ),
        smoke={
            'task.model.embedding.vocab_size': 16,
            'task.model.embedding.dims': 20,
            'task.model.stack.layers': [_small(block(index)) for index in range(_PERIOD)],
            'task.fprop_dtype': 'float32',
            'train_input': rows(batch_size=8, length=8, is_training=True),
            'eval_inputs.eval': rows(batch_size=8, length=8),
            'mesh': Mesh(),
            'train.num_train_steps': 2,
            'train.evaluation.every': 2,
            'train.checkpoints.every': 2,
            'train.summary_interval_steps': 1,
        },
    )


def _small(block: TransformerBlock) -> TransformerBlock:
    block.rebind({'feed_forward.hidden_dims': 16})
    if isinstance(block.attention, Attention):
        block.rebind({'attention.head_dim': 4, 'attention.window': 4})
    else:
        block.rebind({'attention.width': 20})
    return block
