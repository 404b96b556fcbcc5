from typing import Any, TypeVar

import pyglove as pg

from trainer.experiment import Experiment
from trainer.layers.transformer import TransformerLm
from trainer.learner.width_scaling import WidthScaling
from trainer.symbolic.component import bind, components
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import checked

E = TypeVar('E', bound=Experiment)

_EMBEDDING = 'task.model.embedding.dims'
_PROPORTIONAL = ('hidden_dims', 'head_dim')
_SCALING = 'task.learner.width_scaling'


def width_of(experiment: Experiment) -> int:
    """The width of an experiment's model; raises UserError if it is no language model."""
    model = experiment.task.model
    if not isinstance(model, TransformerLm) or not isinstance(model.embedding.dims, int):
        raise UserError(
            f'task.model: its width must be {_EMBEDDING}, a number. It is for TransformerLm, not '
            f'{type(model).__name__}'
        )
    return model.embedding.dims


def widths_at(experiment: Experiment, width: int) -> dict[str, int]:
    """The values by path that give a model another width.

    The widths inside of layers, and head sizes that are set, change in proportion. The number of
    heads stays the same.

    Raises:
        UserError: a width is no integer at that width, or is a decision, or the model is no
            language model.
    """
    before, found = width_of(experiment), {_EMBEDDING: width}
    for component in components(experiment.task.model):
        for name in _PROPORTIONAL:
            value, path = component.sym_init_args.get(name), f'{component.sym_path}.{name}'
            if isinstance(value, pg.hyper.HyperPrimitive):
                raise UserError(f'{path} is a decision, and its width is open: fix it with --set')
            if not isinstance(value, int):
                continue
            if value * width % before:
                raise UserError(
                    f'{path} is {value} at width {before}, which is no integer at width {width}'
                )
            found[path] = value * width // before
    return found


def resized(experiment: E, width: int) -> E:
    """A copy of an experiment at another width, without width scaling.

    Raises:
        UserError: as `widths_at`, or the width does not suit the model, such as its heads.
    """
    return checked(bind(experiment, {**widths_at(experiment, width), _SCALING: None}))


def with_width_scaling(experiment: E, base_width: int) -> E:
    """A copy with the initialization and learning rates of a base, scaled to its width.

    Raises:
        UserError: as `widths_at`, or the optimizer has no rules.
    """
    base: dict[str, Any] = widths_at(experiment, base_width)
    return checked(bind(experiment, {_SCALING: WidthScaling(base=base)}))
