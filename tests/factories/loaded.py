"""Models of the trainer with the weights of a Hugging Face directory."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.factories.pretrained import calls, directory
from trainer.checkpoints.checksums import leaves_by_name, name_of
from trainer.layers import Layer
from trainer.pretrained.families import model_of
from trainer.warm_start.pretrained_reader import PretrainedReader
from trainer.warm_start_rules import Pretrained


def shapes_of(model: Layer, *inputs: Any) -> Any:
    """Shapes of the parameters of a model, as it stores them."""
    made = jax.eval_shape(model.module().init, jax.random.key(0), *inputs)['params']
    return jax.tree.map(lambda box: box.value, made, is_leaf=lambda box: hasattr(box, 'names'))


def loaded(start: Pretrained, model: Layer, *inputs: Any) -> Any:
    """The parameters of a model, loaded on one device."""
    shapes = {'params': shapes_of(model, *inputs)}
    reader = PretrainedReader(start, leaves_by_name(shapes))
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    arrays = reader.load(dict.fromkeys(reader.shapes, one))
    named = jax.tree_util.tree_map_with_path(lambda path, _: arrays[name_of(path)], shapes)
    return named['params']


def largest_difference(name: str, place: Path | None = None) -> float:
    """The largest difference of a logit of a language model from `transformers`' own.

    Args:
        name: of a fixture, with prompts of several lengths and their logits.
        place: the directory to load, by default that of the fixture.
    """
    wanted = calls(name)
    ids = np.zeros((len(wanted), max(call['input_ids'].shape[1] for call in wanted)), np.int32)
    for row, call in zip(ids, wanted, strict=True):  # Padding on the right changes nothing.
        row[: call['input_ids'].shape[1]] = call['input_ids'][0]
    where = str(place or directory(name))
    model = model_of(where)
    params = loaded(Pretrained(where), model, ids)
    logits = jax.jit(model.module().apply)({'params': params}, ids)
    pairs = zip(logits, (call['logits'][0] for call in wanted), strict=True)
    return max(float(np.abs(row[: len(each)] - each).max()) for row, each in pairs)
