"""Experiments that tests kill: tiny models on real inputs."""

import importlib
from pathlib import Path

from tests.factories.tiny import experiment
from trainer.experiment import Experiment
from trainer.inputs.base import Input
from trainer.inputs.seqio.seqio_input import SeqIOInput
from trainer.inputs.text.text import TextInput
from trainer.layers import Dropout

_TASKS = 'tests.factories.seqio_tasks'


def _experiment(train: Input, held_out: Input) -> Experiment:
    made = experiment(num_steps=12, task__model__dropout=Dropout(0.1))
    made.rebind(
        {
            'task.model.embedding.vocab_size': 384,
            'train_input': train,
            'eval_inputs': {'eval': held_out},
            'train.checkpoints.every': 3,
            'train.evaluation.every': 4,
        }
    )
    return made


def Text() -> Experiment:
    """On the text of this repository's licence."""
    paths = [str(Path(__file__).parents[2] / 'LICENSE')]
    data = {'batch_size': 8, 'sequence_length': 16, 'paths': paths}
    return _experiment(TextInput(is_training=True, **data), TextInput(**data))


def PackedSeqIO() -> Experiment:
    """On a SeqIO task, shuffled and packed."""
    importlib.import_module(_TASKS)
    data = {
        'batch_size': 8,
        'mixture_or_task': 'paxtune_texts',
        'task_feature_lengths': {'targets': 64},
        'packing': True,
    }
    return _experiment(
        SeqIOInput(is_training=True, split='train', **data),
        SeqIOInput(split='validation', **data),
    )
