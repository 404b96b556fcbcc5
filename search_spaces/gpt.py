"""GPT at the size that speeds on GPUs are compared at."""

from search_spaces.spmd import SyntheticLm
from trainer.experiment import Experiment


def GPT126M() -> Experiment:
    """Pax's GPT126M: 125 million parameters on 64 GPUs, 256 rows of 2,048 tokens a step.

        python -m trainer.main --exp=gpt.GPT126M --job_log_dir=runs/gpt --set mesh.data=-1 \\
            train_input.batch_size=4 eval_inputs.eval.batch_size=4 train.num_train_steps=100

    On random tokens, for its speed: Pax has it without data, and its child on the Pile. All
    devices have all parameters.
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
        trainable_position_emb=True,
        per_dim_scale=False,
        atten_logit_cap=None,
        softmax_cap_logits=None,
        layernorm_epsilon=1e-5,
        init_std=0.023,
        scale_sqrt_depth=False,
        learning_rate=6e-4,
        schedule='cosine',
        warmup_steps=636,
        decay_end=500_000,
        adam_beta2=0.95,
        adam_epsilon=1e-8,
        adam_clip_threshold=None,
        weight_decay=0.1,
        max_gradient_norm=1.0,
        num_train_steps=600_000,
    )
    return lm.made()
