"""GPT at the size of common speed comparisons on GPUs."""

from search_spaces.spmd import SyntheticLm, loop
from trainer.experiment import Experiment
from trainer.layers import Gaussian, LearnedPositions
from trainer.learner import AdamW, Cosine, GlobalNorm, Learner


def GPT126M() -> Experiment:
    """Pax's GPT126M: 125 million parameters on 64 GPUs, 256 rows of 2,048 tokens per step.

        python -m trainer.main --exp=gpt.GPT126M --job_log_dir=runs/gpt --set mesh.data=-1 \\
            train_input.batch_size=4 eval_inputs.eval.batch_size=4 train.num_train_steps=100

    It trains on random tokens, to measure its speed: Pax defines it without data. All devices have
    all parameters.
    """
    lm = SyntheticLm(
        num_layers=12,
        model_dims=768,
        num_heads=12,
        dims_per_head=64,
        hidden_dims=3072,
        vocab_size=50_304,
        max_seq_len=2048,
        percore_batch_size=4,
        ici_mesh_shape=(8, 1, 1),
        num_slices=8,
        use_repeated_layer=False,
        use_bias=True,
        position_emb=LearnedPositions(2048, Gaussian(0.023)),
        per_dim_scale=False,
        atten_logit_cap=None,
        softmax_cap_logits=None,
        layernorm_epsilon=1e-5,
        init_std=0.023,
        scale_sqrt_depth=False,
        learner=Learner(
            learning_rate=6e-4,
            schedule=Cosine(warmup_steps=636, hold_steps=1, decay_steps=500_000, final_factor=0.1),
            optimizer=AdamW(b2=0.95, epsilon=1e-8, weight_decay=0.1, weight_decay_on_all=True),
            clipping=GlobalNorm(1.0),
        ),
        train=loop(num_train_steps=600_000),
    )
    return lm.made()
