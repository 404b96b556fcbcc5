"""Experiments of `search_spaces.nas` at a size at which dozens of them train in a benchmark."""

from typing import Any

SIZE: dict[str, Any] = {
    'task.model.embedding.dims': 32,
    'train_input.batch_size': 8,
    'train_input.sequence_length': 32,
    'eval_inputs.eval.sequence_length': 32,
    'eval_inputs.eval.max_bytes': 65536,
}
"""Changes that shrink the model and the data."""


def length(steps: int) -> dict[str, Any]:
    """Changes that let an experiment train for some steps."""
    return {
        'task.learner.schedule.decay_steps': steps,
        'task.learner.schedule.warmup_steps': max(steps // 8, 1),
        'train.num_train_steps': steps,
        'train.evaluation.every': steps,
        'train.checkpoints.every': steps,
    }
