"""Language models whose feed-forward layers are mixtures of experts."""

from search_spaces.spmd import smoke
from trainer.experiment import Checkpoints, Experiment, TrainLoop
from trainer.inputs.synthetic import SyntheticLmInput
from trainer.layers import (
    Attention,
    Embedding,
    Experts,
    Linear,
    RMSNorm,
    Rotary,
    Router,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Cosine, Learner
from trainer.mesh import Mesh
from trainer.tasks import LanguageModelTask


def Mixtral8x7B() -> Experiment:
    """Mixtral 8x7B (Jiang et al. 2024): 46.7 billion parameters, 12.9 billion for each token.

        python -m trainer.inspect --exp=experts.Mixtral8x7B

    The model has the published values, except its context of 32,768 tokens: a row has 4,096 here.
    The paper has no values of training. It trains on random tokens, to measure its speed.
    """
    rows = {'batch_size': 64, 'sequence_length': 4096, 'vocab_size': 32_000}
    block = TransformerBlock(
        Attention(num_heads=32, head_dim=128, num_kv_heads=8, position=Rotary(1e6)),
        Experts(num_experts=8, hidden_dims=14_336, router=Router(experts_per_token=2)),
        attention_norm=RMSNorm(epsilon=1e-5),
        feed_forward_norm=RMSNorm(epsilon=1e-5),
    )
    model = TransformerLm(
        Embedding(vocab_size=32_000, dims=4096, scale_sqrt_depth=False),
        Stack([block], repeats=32, scan='always'),
        final_norm=RMSNorm(epsilon=1e-5),
        head=Linear(32_000),
    )
    learner = Learner(
        learning_rate=3e-4,
        schedule=Cosine(warmup_steps=2000, decay_steps=100_000, final_factor=0.1),
        optimizer=AdamW(b2=0.95, weight_decay=0.1),
    )
    return Experiment(
        task=LanguageModelTask(model, learner, fprop_dtype='bfloat16'),
        train_input=SyntheticLmInput(is_training=True, **rows),
        eval_inputs={'eval': SyntheticLmInput(**rows)},
        mesh=Mesh(data=1, fsdp=8, expert=8),
        train=TrainLoop(num_train_steps=100_000, checkpoints=Checkpoints(1000)),
        smoke=smoke()
        | {
            'task.model.head.output_dims': 16,
            'task.model.stack.layers[0].attention.num_kv_heads': 1,
        },
    )
