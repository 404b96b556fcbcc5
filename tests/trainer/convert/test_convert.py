"""Experiments from Hugging Face directories, and directories from checkpoints."""

import contextlib
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories import pretrained
from tests.factories.loaded import largest_difference, loaded
from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.retention import RetentionPolicy
from trainer.convert.__main__ import main
from trainer.experiment import Checkpoints, Experiment
from trainer.layers import Dropout, Layer, TransformerLm
from trainer.learner import Learner
from trainer.pretrained.families import config_of, model_of
from trainer.pretrained.tensor_files import read_tensors
from trainer.state import TrainState
from trainer.symbolic.errors import UserError
from trainer.symbolic.registry import find
from trainer.symbolic.serialization import to_json_text
from trainer.tasks import ClassificationTask, LanguageModelTask
from trainer.warm_start_rules import Pretrained

LIKE_LLAMA = (
    'llama_2',
    'llama_3',
    'mistral',
    'qwen_2',
    'qwen_3',
    'mixtral',
    'gemma_2',
    'gemma_3',
    'gpt_2',
)
ENCODERS = 'bert', 'bert_classifier', 'vit'
IDS = jnp.zeros((1, 4), jnp.int32)


def run_in(directory: Path, made: Experiment, params: Any, ema_params: Any = None) -> Path:
    """Writes the record and a checkpoint of step 7 of a run."""
    directory.mkdir()
    (directory / 'experiment.json').write_text(to_json_text(made))
    state = TrainState(jnp.array(7), params, {}, {}, ema_params or {})
    store = CheckpointStore(directory / 'checkpoints', RetentionPolicy(Checkpoints()))
    with contextlib.closing(store):
        store.save(7, state, Progress())
    return directory


def run_of(name: str, directory: Path, scan: str = 'always') -> Path:
    """A run that has the weights of a fixture, in scanned layers."""
    start = Pretrained(str(pretrained.directory(name)))
    model = model_of(start.directory).rebind({'stack.scan': scan}, raise_on_no_change=False)
    kind = ClassificationTask if name in ENCODERS else LanguageModelTask
    task = kind(model, Learner(1e-3))
    made = experiment(task=task, train__init_from_checkpoint=start)
    inputs = jnp.zeros((1, 12, 12, 3)) if name == 'vit' else IDS
    return run_in(directory, made, loaded(start, model, inputs))


def converted(run: Path, out: Path, *flags: str) -> Path:
    assert main(['--to=hf', f'--job_log_dir={run}', f'--out={out}', *flags]) == 0
    return out


def tensors(directory: Path) -> dict[str, np.ndarray]:
    found = read_tensors(str(directory)).items()
    return {name: np.asarray(tensor.mapped(), np.float32) for name, tensor in found}


@pytest.mark.parametrize(
    'name',
    [
        each if each in ('llama_2', 'mixtral') else pytest.param(each, marks=pytest.mark.slow)
        for each in [*LIKE_LLAMA, *ENCODERS]
    ],
)
def test_a_checkpoint_becomes_the_directory_that_it_began_with(name: str, tmp_path: Path) -> None:
    out = converted(run_of(name, tmp_path / 'run'), tmp_path / 'out')
    there, here = tensors(pretrained.directory(name)), tensors(out)
    assert here.keys() == there.keys()
    for tensor, values in here.items():
        np.testing.assert_allclose(values, there[tensor], rtol=0, atol=3e-7)
    names = 'architectures', 'vocab_size', 'hidden_size', 'num_hidden_layers', 'bos_token_id'
    first, second = (
        json.loads((each / 'config.json').read_text()) for each in (pretrained.directory(name), out)
    )
    assert [first.get(each) for each in names] == [second.get(each) for each in names]
    if name in LIKE_LLAMA:
        assert largest_difference(name, out) < 1e-4
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1, 'others cannot read all'


@pytest.mark.slow
def test_transformers_loads_what_was_written(tmp_path: Path) -> None:
    written = [
        (converted(run_of(name, tmp_path / f'{name}_run'), tmp_path / name), name)
        for name in [*LIKE_LLAMA, *ENCODERS]
    ]
    differences = pretrained.differences(written)
    assert max(differences) < 1e-4, dict(zip(written, differences, strict=True))


def test_averages_in_bfloat16_and_a_tokenizer_are_written(tmp_path: Path) -> None:
    source = shutil.copytree(pretrained.directory('llama_2'), tmp_path / 'source')
    (source / 'tokenizer.json').write_text('{}')
    start = Pretrained(str(source))
    model = model_of(start.directory)
    params = loaded(start, model, IDS)
    made = experiment(task__model=model)
    run = run_in(tmp_path / 'run', made, jax.tree.map(jnp.zeros_like, params), params)
    flags = '--dtype=bfloat16', f'--tokenizer={source}', '--checkpoint_step=7'
    out = converted(run, tmp_path / 'out', *flags)
    assert json.loads((out / 'config.json').read_text())['dtype'] == 'bfloat16'
    assert (out / 'tokenizer.json').read_text() == '{}'
    kernel, wide = tensors(out)['lm_head.weight'], tensors(source)['lm_head.weight']
    np.testing.assert_array_equal(kernel, wide.astype(jnp.bfloat16).astype(np.float32))


def changed(**fields: Any) -> TransformerLm:
    model = model_of(str(pretrained.directory('llama_2')))
    changes = {key.replace('__', '.'): value for key, value in fields.items()}
    return model.rebind({'stack.repeats': 1, **changes})


@pytest.mark.parametrize(
    'fields',
    [
        {'dropout': Dropout(0.1)},
        {'stack__remat': 'dots', 'stack__scan': 'always'},
        {'stack__layers[0].attention.implementation': 'xla'},
        {'stack__layers[0].attention.position': 'rotary'},
    ],
)
def test_fields_without_an_effect_on_the_result_do_not_count(fields: dict[str, Any]) -> None:
    family, config = config_of(changed(**fields))
    assert family.architecture == 'LlamaForCausalLM'
    assert config['rope_parameters'] == {'rope_type': 'default', 'rope_theta': 10_000.0}


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('logits_cap', 3.0),
        *(
            pytest.param(name, value, marks=pytest.mark.slow)
            for name, value in [
                ('embedding.scale_sqrt_depth', True),
                ('final_norm.epsilon', 1e-5),
                ('stack.layers[0].attention.sinks', True),
                ('stack.layers[0].attention.softmax_scale', 0.3),
                ('stack.layers[0].attention.bias', ['key']),
                ('stack.layers[0].parallel', True),
            ]
        ),
    ],
)
def test_a_model_that_no_architecture_computes_is_refused_by_its_fields(
    field: str, value: Any
) -> None:
    with pytest.raises(UserError, match=r'no architecture computes the same') as caught:
        config_of(changed(**{field: value}))
    assert f'task.model.{field}' in str(caught.value)


def test_a_place_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    run = run_of('llama_3', tmp_path / 'run')
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match=r'--out: .*file/out cannot be written \(Not a directory\)'):
        converted(run, tmp_path / 'file' / 'out')


def test_an_activation_that_transformers_lacks_is_named() -> None:
    with pytest.raises(UserError, match=r"hidden_act is 'sigmoid', which is not supported"):
        config_of(changed(**{'stack.layers[0].feed_forward.activation': 'sigmoid'}))


def test_a_model_with_other_layers_is_refused() -> None:
    class Other(Layer):
        def forward(self, ids: jax.Array) -> jax.Array:
            return ids

    with pytest.raises(UserError, match=r'no architecture has the layers of this Other'):
        config_of(Other())


@pytest.mark.parametrize('name', ['llama_3', 'mixtral', 'gemma_3', 'bert'])
def test_the_experiment_of_a_directory_is_a_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = pretrained.directory(name)
    file = tmp_path / f'from_{name}.py'
    assert main([f'--from={place}', f'--exp_out={file}']) == 0
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    made = find(f'from_{name}.Continued', Experiment)
    assert made.task.model == model_of(str(place))
    assert made.train.init_from_checkpoint == Pretrained(str(place))
    assert getattr(made.task, 'mask_id', 4) == 4
    assert max(map(len, file.read_text().splitlines())) <= 100


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ([], 'give either --from=DIR with --exp_out, or --to=hf'),
        (['--from={llama}', '--to=hf'], 'give either'),
        (['--from={llama}'], '--from needs --exp_out=FILE'),
        (['--from={llama}', '--exp_out={tmp}/a b.py'], 'is no name of a Python module'),
        (['--from={llama}', '--exp_out={tmp}/experiment.json'], 'is no name of a Python module'),
        (['--from={llama}', '--exp_out={tmp}/there.py'], 'there.py exists'),
        (['--from={llama}', '--exp_out={tmp}/no/a.py'], 'there is no directory'),
        (['--from={tmp}', '--exp_out={tmp}/a.py'], 'has no config.json'),
        (['--from={vit}', '--exp_out={tmp}/a.py'], 'Experiments are written for language models'),
        (['--from={tmp}/bert', '--exp_out={tmp}/a.py'], 'no tokenizer.json or vocab.txt with'),
        (['--to=hf'], '--to needs --job_log_dir=RUN and --out=DIR'),
        (['--to=hf', '--job_log_dir={tmp}', '--out={tmp}/a'], 'experiment.json is no record'),
        (['--to=hf', '--job_log_dir={tmp}/run', '--out={tmp}'], 'exists, and is no empty'),
        (
            ['--to=hf', '--job_log_dir={tmp}/run', '--out={tmp}/a', '--checkpoint_step=8'],
            'there is no checkpoint of step 8',
        ),
        (['--to=hf', '--job_log_dir={tmp}/run', '--out={tmp}/a'], 'has no tensor for extra.up'),
        (['--from={llama}', '--exp_out=/proc/a.py'], '--exp_out: /proc/a.py cannot be written'),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(
    flags: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / 'there.py').write_text('')
    (tmp_path / 'bert').mkdir()
    shutil.copy(pretrained.directory('bert') / 'config.json', tmp_path / 'bert')
    made = experiment(task__model=model_of(str(pretrained.directory('llama_2'))))
    run_in(tmp_path / 'run', made, {'extra': {'up': jnp.ones((2, 2))}})
    before = sorted(tmp_path.rglob('*'))
    names = {name: pretrained.directory(at) for name, at in (('llama', 'llama_2'), ('vit', 'vit'))}
    given = [each.format(tmp=tmp_path, **names) for each in flags]
    with pytest.raises(UserError) as caught:
        main(given)
    assert message in str(caught.value)
    assert sorted(tmp_path.rglob('*')) == before


def test_a_small_limit_makes_several_files(tmp_path: Path) -> None:
    from trainer.pretrained.tensor_files import write_tensors

    arrays = {name: np.full((4, 4), i, np.float32) for i, name in enumerate('abc')}
    shapes = {name: each.shape for name, each in arrays.items()}
    write_tensors(tmp_path, shapes, arrays.__getitem__, np.float32, max_shard_bytes=130)
    assert len([*tmp_path.glob('*.safetensors')]) == 2
    for name, values in tensors(tmp_path).items():
        np.testing.assert_array_equal(values, arrays[name])
