"""Runs that begin with the weights of a Hugging Face directory, and directories that do not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.loaded import loaded
from tests.factories.pretrained import directory
from tests.factories.tiny import experiment
from trainer.experiment import Experiment
from trainer.layers import Dropout
from trainer.layers.stack import per_layer
from trainer.pretrained.families import model_of
from trainer.pretrained.tensor_files import read_tensors, write_tensors
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start_rules import Pretrained, TensorRule

LLAMA = directory('llama_2')


def loader_of(made: Experiment) -> WarmStartLoader:
    program, _ = compiled(localized(made))
    return WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)


def started(made: Experiment) -> Any:
    """The parameters that a run begins with."""
    program, values = compiled(localized(made))
    return jax.device_get(loader_of(made).load(program.random_key(0), values).params)


def run_of(start: Pretrained, **fields: Any) -> Experiment:
    model = model_of(start.directory)
    return experiment(task__model=model, train__init_from_checkpoint=start, **fields)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the directory, in four files with an index."""
    shutil.copytree(LLAMA, tmp_path / 'copy')
    return tmp_path / 'copy'


def plain(start: Pretrained) -> Any:
    """The parameters that a reader loads, by layers, as arrays of numpy."""
    ids = jnp.zeros((1, 4), jnp.int32)
    return per_layer(jax.device_get(loaded(start, model_of(start.directory), ids)))


def test_a_run_with_scanned_layers_begins_with_the_weights() -> None:
    start = Pretrained(str(LLAMA))
    made = run_of(start, task__model__stack__scan='always')
    params = started(made)
    assert [*params['stack']] == ['layers_0x2']
    jax.tree.map(np.testing.assert_array_equal, per_layer(params), plain(start))


def test_arrays_may_be_left_out(copy: Path) -> None:
    rest = Pretrained(str(copy), ignore=[r'head\..*', r'.*layers_1\..*norm.*'])
    rest = rest.rebind(unused=['lm_head.*', r'model\.layers\.1\..*norm.*'])
    params = started(run_of(rest, task__model__stack__scan='always'))
    scale = params['stack']['layers_0x2']['attention_norm']['scale']
    assert np.abs(scale[0]).max() > 0.1
    assert not np.abs(scale[1]).any()  # As a new norm has it.
    own = plain(Pretrained(str(copy)))
    np.testing.assert_array_equal(params['embedding']['table'], own['embedding']['table'])
    assert not np.array_equal(params['head']['kernel'], own['head']['kernel'])


def test_parameters_in_bfloat16_are_rounded_once() -> None:
    params = started(run_of(Pretrained(str(LLAMA)), task__param_dtype='bfloat16'))
    kernel, wide = params['head']['kernel'], plain(Pretrained(str(LLAMA)))['head']['kernel']
    np.testing.assert_array_equal(kernel, wide.astype(jnp.bfloat16))


def damaged(copy: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    (copy / file).write_bytes(change((copy / file).read_bytes()))


def indexed(copy: Path, **changes: str) -> None:
    """Changes files in the index."""
    path = copy / 'model.safetensors.index.json'
    index = json.loads(path.read_text())
    index['weight_map'] |= {name.replace('__', '.'): file for name, file in changes.items()}
    path.write_text(json.dumps(index))


SHARD = 'model-00002-of-00004.safetensors'


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda copy: (copy / SHARD).unlink(), f'{SHARD} is missing; model.safetensors.index.json'),
        (lambda copy: damaged(copy, SHARD, lambda old: old[:-8]), f'{SHARD} is damaged, or no saf'),
        (lambda copy: damaged(copy, SHARD, lambda old: b'\xff' * 8 + old[8:]), 'is damaged'),
        (lambda copy: damaged(copy, SHARD, lambda _: b''), 'is damaged'),
        (lambda copy: indexed(copy, model__norm__weight='../norm.safetensors'), 'no file of the'),
        (lambda copy: indexed(copy, model__norm__weight='/etc/passwd'), 'no file of the directory'),
        (lambda copy: indexed(copy, model__norm__weight=''), "names '', which is no file of the"),
        (lambda copy: indexed(copy, model__norm__weight='x' * 999), "x', which is no file of the"),
        (lambda copy: indexed(copy, model__more__weight=SHARD), 'lacks model.more.weight, which'),
        (lambda copy: (copy / 'model.safetensors.index.json').write_text('[]'), 'JSON object'),
        (lambda copy: (copy / 'model.safetensors.index.json').unlink(), 'has neither model.safe'),
        (lambda copy: (copy / 'config.json').unlink(), 'has no config.json'),
        (lambda copy: (copy / 'config.json').write_text('{'), 'config.json cannot be read'),
        (lambda copy: (copy / 'config.json').write_text('{}'), 'architectures must name'),
    ],
)
def test_a_damaged_directory_is_one_message_with_the_path(
    change: Callable[[Path], None], message: str, copy: Path
) -> None:
    made = run_of(Pretrained(str(copy)))
    change(copy)
    with pytest.raises(UserError, match=r'^train\.init_from_checkpoint: ') as caught:
        started(made)
    assert message in str(caught.value)
    assert str(copy) in str(caught.value)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    shutil.copy(LLAMA / 'config.json', tmp_path)
    (tmp_path / 'pytorch_model.bin').write_bytes(b'cos\nsystem\n')
    with pytest.raises(UserError, match=r'pytorch_model\.bin is a pickle, which may run code'):
        started(run_of(Pretrained(str(tmp_path))))


def test_all_arrays_that_do_not_fit_are_named() -> None:
    model = model_of(str(LLAMA)).rebind(
        {'stack.repeats': 3, 'embedding.vocab_size': 65, 'head': None}
    )
    with pytest.raises(UserError) as caught:
        started(experiment(task__model=model, train__init_from_checkpoint=Pretrained(str(LLAMA))))
    for line in (
        'embedding.table (65, 24): model.embed_tokens.weight has the shape (64, 24), where it ',
        'stack.layers_2.attention.query (24, 4, 8): model.layers.2.self_attn.q_proj.weight is mis',
        'lm_head.weight (64, 24): no array of task.model uses it',
    ):
        assert line in str(caught.value)


def test_rules_of_a_user_replace_those_of_the_architecture(copy: Path) -> None:
    rules = [TensorRule('head.kernel', 'lm_head.weight', 'transpose')]
    start = Pretrained(str(copy), rules, ignore=['(?!head).*'], unused=['model.*'])
    made = run_of(start)
    (copy / 'config.json').unlink()
    own = plain(Pretrained(str(LLAMA)))
    np.testing.assert_array_equal(started(made)['head']['kernel'], own['head']['kernel'])


def test_an_array_without_a_rule_is_named() -> None:
    start = Pretrained(str(LLAMA), [TensorRule('head.kernel', 'lm_head.weight')], unused=['.*'])
    with pytest.raises(UserError, match=r'head\.kernel \(24, 64\): lm_head\.weight has the shape'):
        started(run_of(start))
    start = start.rebind({'rules[0].operation': 'transpose'})
    with pytest.raises(UserError, match=r'embedding\.table is missing'):
        started(run_of(start))


@pytest.mark.parametrize(
    ('field', 'value', 'wanted'),
    [
        ('stack.layers[0].attention.position.wavelength', 1e4 + 1, 10000.0),
        ('final_norm.epsilon', 1e-6, 0.001),
    ],
)
def test_mistakes_that_a_loss_hides_are_refused(field: str, value: float, wanted: float) -> None:
    made = run_of(Pretrained(str(LLAMA))).rebind({f'task.model.{field}': value})
    with pytest.raises(
        UserError, match=r'^train\.init_from_checkpoint: task\.model computes'
    ) as caught:
        loader_of(made)
    assert f'task.model.{field}: {value}, there {wanted}' in str(caught.value)
    loader_of(made.rebind({'train.init_from_checkpoint.allow_changes': True}))


def test_a_copy_of_a_tied_table_is_not_needed(tmp_path: Path) -> None:
    place = directory('llama_3')
    tensors = {name: each.mapped() for name, each in read_tensors(str(place)).items()}
    tensors['lm_head.weight'] = tensors['model.embed_tokens.weight']
    shapes = {name: each.shape for name, each in tensors.items()}
    write_tensors(tmp_path, shapes, tensors.__getitem__, np.float32)
    shutil.copy(place / 'config.json', tmp_path)
    own, copied = (plain(Pretrained(str(each))) for each in (place, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, own, copied)


def test_a_file_that_goes_before_it_is_read_is_one_message(copy: Path) -> None:
    loader = loader_of(made := run_of(Pretrained(str(copy))))
    (copy / SHARD).unlink()
    program, values = compiled(localized(made))
    with pytest.raises(UserError, match=r'^train\.init_from_checkpoint: .* has changed: .*00002'):
        loader.load(program.random_key(0), values)


def test_dropout_and_layout_are_no_mistakes() -> None:
    changes = {'task.model.dropout': Dropout(0.1), 'task.model.stack.scan': 'always'}
    loader_of(run_of(Pretrained(str(LLAMA))).rebind(changes))
