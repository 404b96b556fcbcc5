"""Experiments that continue from a Hugging Face directory, as the text of a Python module."""

import importlib
import re
from collections import defaultdict
from pathlib import Path

from trainer.experiment import Evaluation, Experiment, TrainLoop
from trainer.inputs.text.json_shards import JsonShardsInput
from trainer.layers.text_classifier import TextClassifier
from trainer.layers.transformer import TransformerLm
from trainer.learner import AdamW, Cosine, Learner
from trainer.pretrained.bert import special_token
from trainer.pretrained.families import model_of
from trainer.runtime.data_paths import data_path
from trainer.symbolic.component import Component, components
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask, MaskedLanguageModelTask
from trainer.warm_start_rules import Pretrained

_STEPS, _WIDTH = 1000, 100

_TEXT = '''"""Continues from the weights of a Hugging Face directory.

    python -m trainer.main --exp={module}.Continued --job_log_dir=runs/{module}

`python -m trainer.convert` wrote the model from `config.json`. The learning rate, its schedule and
the weight decay are those of Llama 2's supervised fine-tuning (Touvron et al. 2023, section 3.1).
"""

{imports}


def Continued() -> Experiment:
    """The model of `config.json`, on texts: gzip files of JSON objects with a `text`, in lines."""
    return {experiment}
'''


def experiment_text(directory: str, module: str) -> str:
    """The text of a Python module with an experiment.

    Raises:
        UserError: `config.json` cannot be read, or describes no language model.
    """
    made = continued(directory)
    text = made.format(python_format=True, hide_default_values=True, compact=False)
    # PyGlove indents by 2. A line of the text begins with spaces for its indentation alone.
    text = re.sub(r'^ +', lambda found: found[0] * 2, text, flags=re.MULTILINE)
    return _TEXT.format(
        module=module,
        imports='\n'.join(_imports(made, text)),
        experiment=text.replace('\n', '\n    '),
    )


def continued(directory: str) -> Experiment:
    """An experiment that trains the model of a directory further."""
    model = model_of(directory)
    if not isinstance(model, TransformerLm) or isinstance(model, TextClassifier):
        raise UserError(
            f'--from: {directory} has a {type(model).__name__}. Experiments are written for '
            'language models alone; model_of(DIR) makes this model in an experiment of yours'
        )
    has_tokenizer = Path(directory, 'tokenizer.json').is_file()
    data = JsonShardsInput(
        batch_size=8,
        is_training=True,
        sequence_length=512,
        vocabulary=directory if has_tokenizer else '',
        packing=True,
        paths=['train.json.gz'],
    )
    learner = Learner(
        learning_rate=2e-5,
        schedule=Cosine(warmup_steps=_STEPS // 30, decay_steps=_STEPS, final_factor=0.1),
        optimizer=AdamW(weight_decay=0.1),
    )
    return Experiment(
        task=_task(model, learner, directory),
        train_input=data,
        eval_inputs={'eval': data.clone(deep=True, override=_OF_EVAL)},
        train=TrainLoop(
            num_train_steps=_STEPS,
            evaluation=Evaluation(100),
            init_from_checkpoint=Pretrained(directory),
        ),
    )


def _task(model: TransformerLm, learner: Learner, directory: str) -> LanguageModelTask:
    mixer = model.stack.layers[0].sym_getattr('attention', None)
    if getattr(mixer, 'mask', 'causal') != 'full':
        return LanguageModelTask(model=model, learner=learner)
    mask_id = special_token(data_path(directory), '[MASK]')
    if mask_id is None:
        raise UserError(
            f'--from: {directory} has a masked language model, but no tokenizer.json or vocab.txt '
            'with [MASK], the token that hides others'
        )
    return MaskedLanguageModelTask(model=model, learner=learner, mask_id=mask_id)


_OF_EVAL = {'is_training': False, 'paths': ['eval.json.gz']}


def _imports(made: Component, text: str) -> list[str]:
    """The statements that import the classes in a text, each from the shortest module."""
    names: dict[str, set[str]] = defaultdict(set)
    kinds = {type(each) for each in components(made)}
    for kind in (each for each in kinds if f'{each.__name__}(' in text):
        parts = kind.__module__.split('.')
        modules = ['.'.join(parts[:length]) for length in range(2, len(parts) + 1)]
        short = next(
            each
            for each in modules
            if getattr(importlib.import_module(each), kind.__name__, None) is kind
        )
        names[short].add(kind.__name__)
    return [_import(module, sorted(names[module])) for module in sorted(names)]


def _import(module: str, names: list[str]) -> str:
    line = f'from {module} import {", ".join(names)}'
    if len(line) <= _WIDTH:
        return line
    return '\n'.join([f'from {module} import (', *(f'    {each},' for each in names), ')'])
