from typing import Any

from trainer.symbolic.component import components
from trainer.symbolic.usual_values import span_at

_MODEL = 'task.model'


def width_span(experiment: Any) -> tuple[float, float] | None:
    """The smallest and the largest width of a model, which may be a decision.

    The width is the first field `dims` of the model, as `Embedding` and `VisionTransformer` have.
    Returns None for other models, such as convolutional ones, and without experiment.
    """
    if experiment is None or not experiment.sym_has(_MODEL):
        return None
    for layer in components(experiment.sym_get(_MODEL)):
        if 'dims' in layer.sym_init_args:
            return span_at(experiment, f'{layer.sym_path}.dims')
    return None
