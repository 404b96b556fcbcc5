"""Adapters that `peft` saved, and adapters that `peft` loads."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.loaded import shapes_of
from tests.factories.pretrained import FOLDER, calls, differences, directory
from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.checksums import leaves_by_name, name_of
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.retention import RetentionPolicy
from trainer.convert.__main__ import main
from trainer.experiment import Checkpoints, Experiment
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.lora import LoRA, is_adapter
from trainer.pretrained.families import model_of
from trainer.pretrained.peft import require_same
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text
from trainer.warm_start.pretrained_reader import PretrainedReader
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start_rules import Inheritance, Pretrained

ADAPTER = FOLDER / 'adapters' / 'llama_2'
BASE = str(directory('llama_2'))
TARGETS = [r'.*\.(query|output|down)']


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ADAPTER, tmp_path / 'adapter'))


def test_an_adapter_of_peft_has_the_logits_of_peft() -> None:
    lora = LoRA(2, alpha=6.0, rslora=True, targets=TARGETS)
    wanted, model = np.load(ADAPTER / 'reference.npz'), model_of(BASE)
    ids = wanted['input_ids'].astype(np.int32)
    with forward_context(ForwardContext(adapters=lora)):
        shapes = {'params': shapes_of(model, ids)}
        reader = PretrainedReader(Pretrained(BASE, adapter=str(ADAPTER)), leaves_by_name(shapes))
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        arrays = reader.load(dict.fromkeys(reader.shapes, one))
        params = jax.tree_util.tree_map_with_path(lambda path, _: arrays[name_of(path)], shapes)
        logits = jax.jit(model.module().apply)(params, ids)
    np.testing.assert_allclose(logits, wanted['logits'], atol=1e-4)


def begun_with(lora: LoRA | None, adapter: Path) -> Experiment:
    start = Pretrained(BASE, adapter=str(adapter))
    made = experiment(task__model=model_of(BASE), train__init_from_checkpoint=start)
    return localized(made.rebind({'task.adapters': lora}, raise_on_no_change=False))


def loader(lora: LoRA | None, adapter: Path) -> WarmStartLoader:
    made = begun_with(lora, adapter)
    return WarmStartLoader(made, warm_start_sources(made, '/nowhere'), compiled(made)[0])


def changed(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / 'adapter_config.json'
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


FITS: dict[str, Any] = {'rank': 2, 'alpha': 6.0, 'rslora': True, 'targets': TARGETS}


@pytest.mark.parametrize(
    ('lora', 'change', 'message'),
    [
        (None, changed(), 'the run has no adapters: set task.adapters'),
        (LoRA(**FITS | {'rank': 4}), changed(), 'has r=2, and task.adapters.rank is 4'),
        (LoRA(**FITS | {'rslora': False}), changed(), 'multiplies adapters by 4.24264 without'),
        (LoRA(**FITS | {'targets': ['.*query']}), changed(), 'no array of task.model uses it'),
        (LoRA(**FITS), changed(peft_type='IA3'), "peft_type must be LORA, not 'IA3'"),
        (LoRA(**FITS), changed(use_dora=True), 'use_dora is True, which is not read'),
        (LoRA(**FITS), changed(bias='all'), "bias must be 'none', not 'all'"),
        (LoRA(**FITS), changed(r='two'), 'r and lora_alpha must be numbers'),
        (
            LoRA(**FITS),
            lambda folder: (folder / 'adapter_config.json').unlink(),
            'has no adapter_config.json: name a directory that peft saved',
        ),
    ],
)
@pytest.mark.slow
def test_an_adapter_that_does_not_fit_is_refused(
    lora: LoRA | None, change: Callable[[Path], None], message: str, copy: Path
) -> None:
    change(copy)
    with pytest.raises(UserError) as caught:
        loader(lora, copy)
    assert message in str(caught.value)
    assert str(caught.value).startswith('train.init_from_checkpoint')


def test_the_log_names_the_model_of_an_adapter_for_another_one(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_same(str(copy), LoRA(**FITS), 'here', BASE)
    assert not caplog.text
    changed(base_model_name_or_path='models/other')(copy)
    require_same(str(copy), LoRA(**FITS), 'here', BASE)
    assert "was trained on 'models/other', and the run has" in caplog.text


def adapted_run(folder: Path, name: str, scan: str, lora: LoRA, **fields: Any) -> None:
    """Writes a run of a fixture with random adapters, and their logits."""
    start = Pretrained(str(directory(name)))
    model = model_of(start.directory).rebind({'stack.scan': scan}, raise_on_no_change=False)
    fields = {'task__model': model, 'train__init_from_checkpoint': start, **fields}
    made = localized(experiment(task__adapters=lora, **fields))
    program, values = compiled(made)
    begun = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
    params = begun.load(program.random_key(0), values).params
    keys = iter(jax.random.split(jax.random.key(3), 100))
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (
            0.3 * jax.random.normal(next(keys), x.shape) if is_adapter(path[-1].key) else x
        ),
        params,
    )
    folder.mkdir()
    (folder / 'experiment.json').write_text(to_json_text(made))
    store = CheckpointStore(folder / 'checkpoints', RetentionPolicy(Checkpoints()))
    with contextlib.closing(store):
        store.save(7, TrainState(jax.numpy.array(7), params, {}, {}, {}, {}), Progress())
    ids = calls(name)[1]['input_ids'].astype(np.int32)
    with forward_context(ForwardContext(adapters=lora)):
        logits = jax.jit(model.module().apply)({'params': params}, ids)
    arrays: Any = {'input_ids_0': ids.astype(np.int64), 'logits_0': logits}
    np.savez(folder / 'logits.npz', **arrays)


def converted(folder: Path, to: str) -> Path:
    out = folder.parent / f'{folder.name}_{to}'
    assert main([f'--to={to}', f'--job_log_dir={folder}', f'--out={out}']) == 0
    return out


@pytest.mark.slow
def test_an_adapter_that_is_written_and_read_is_the_same(tmp_path: Path) -> None:
    lora = LoRA(2, alpha=6.0, rslora=True, targets=TARGETS)
    adapted_run(tmp_path / 'run', 'llama_2', 'always', lora)
    out = converted(tmp_path / 'run', 'peft')
    found, own = (json.loads((each / 'adapter_config.json').read_text()) for each in (out, ADAPTER))
    same = 'r', 'lora_alpha', 'use_rslora', 'use_dora', 'peft_type', 'fan_in_fan_out', 'bias'
    assert {each: found[each] for each in same} == {each: own[each] for each in same}
    program, values = compiled(begun_with(lora, out))
    params = loader(lora, out).load(program.random_key(0), values).params
    ids = np.load(tmp_path / 'run' / 'logits.npz')
    with forward_context(ForwardContext(adapters=lora)):
        logits = jax.jit(model_of(BASE).module().apply)({'params': params}, ids['input_ids_0'])
    np.testing.assert_allclose(logits, ids['logits_0'], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'scan', 'lora'),
    [
        ('llama_2', 'always', LoRA(4)),
        ('llama_3', 'never', LoRA(4, alpha=3.0, rslora=True, targets=TARGETS)),
        ('qwen_3', 'always', LoRA(4, dora=True)),
        ('gpt_2', 'never', LoRA(2, targets=[r'.*\.(output|up|down)'])),
    ],
)
def test_peft_and_transformers_have_the_logits_of_an_adapted_run(
    name: str, scan: str, lora: LoRA, tmp_path: Path
) -> None:
    adapted_run(tmp_path / 'run', name, scan, lora)
    logits = tmp_path / 'run' / 'logits.npz'
    pairs = [(converted(tmp_path / 'run', to), logits) for to in ('peft', 'hf')]
    assert max(differences(pairs)) < 1e-3


@pytest.mark.slow
def test_adapters_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for name, message in (
        ('gpt_2', 'GPT2LMHeadModel has no module for stack.layers_0.attention.'),
        ('mixtral', 'MixtralForCausalLM has no module for stack.layers_0.feed_forward.'),
    ):
        adapted_run(tmp_path / name, name, 'never', LoRA(2))
        with pytest.raises(UserError, match=message):
            converted(tmp_path / name, 'peft')
    source = Path(shutil.copytree(BASE, tmp_path / 'base'))
    start = Pretrained(str(source))
    adapted_run(tmp_path / 'run', 'llama_2', 'never', LoRA(2), train__init_from_checkpoint=start)
    for file in source.glob('*.safetensors*'):
        file.unlink()
    for file in directory('mistral').glob('*.safetensors*'):
        shutil.copy(file, source)
    with pytest.raises(UserError, match='there has changed since the run began'):
        converted(tmp_path / 'run', 'hf')
    assert not (tmp_path / 'run_hf').exists()
    shutil.rmtree(source)
    with pytest.raises(UserError, match=str(source)):
        converted(tmp_path / 'run', 'hf')


@pytest.mark.slow
def test_a_child_is_written_with_its_base_when_its_parent_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / 'run'
    adapted_run(folder, 'llama_2', 'never', LoRA(2))
    expected = converted(folder, 'hf') / 'model.safetensors'
    file = folder / 'experiment.json'
    tree = json.loads(file.read_text())
    child = Inheritance(str(tmp_path / 'gone'), base=Pretrained(BASE))
    tree['train']['init_from_checkpoint'] = json.loads(to_json_text(child))
    file.write_text(json.dumps(tree))
    kept = expected.rename(tmp_path / 'expected')
    shutil.rmtree(tmp_path / 'run_hf')
    assert (converted(folder, 'hf') / 'model.safetensors').read_bytes() == kept.read_bytes()
    named = json.loads((converted(folder, 'peft') / 'adapter_config.json').read_text())
    assert named['base_model_name_or_path'] == BASE
