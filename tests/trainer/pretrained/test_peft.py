"""Adapters that `peft` saved, and adapters that `peft` loads."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.loaded import shapes_of
from tests.factories.pretrained import FOLDER, directory
from tests.factories.tiny import experiment
from trainer.checkpoints.checksums import leaves_by_name, name_of
from trainer.experiment import Experiment
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.lora import LoRA
from trainer.pretrained.families import model_of
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.warm_start.pretrained_reader import PretrainedReader
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start_rules import Pretrained

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


def begun(lora: LoRA | None, adapter: Path) -> Experiment:
    start = Pretrained(BASE, adapter=str(adapter))
    made = experiment(task__model=model_of(BASE), train__init_from_checkpoint=start)
    return localized(made.rebind({'task.adapters': lora}, raise_on_no_change=False))


def loader(lora: LoRA | None, adapter: Path) -> WarmStartLoader:
    made = begun(lora, adapter)
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
