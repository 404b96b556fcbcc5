"""Checks of the steps of an experiment on its data, before anything is compiled or written."""

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.experiment import Experiment
from trainer.inputs.arrays.arrays import ArraysInput
from trainer.inputs.base import Batch, EndOfData, Input, host_share
from trainer.inputs.indexed import IndexedInput
from trainer.inputs.weights import broadcast, weights_of
from trainer.layers.base import ForwardContext
from trainer.losses import SigmoidCrossEntropy, SoftmaxCrossEntropy
from trainer.mesh import Arrangement
from trainer.program.costs import divisible, static_costs
from trainer.program.setup import check_lengths, check_suits
from trainer.program.step_functions import (
    ElementSpec,
    TracedSteps,
    abstract_metrics,
    abstract_outputs,
    decode,
    spec_key,
)
from trainer.runtime.signals import Signal
from trainer.state import params_shardings
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import OWN_PACKAGES, bind, components
from trainer.symbolic.errors import UserError, prefixed
from trainer.task import Task
from trainer.tasks.supervised import SupervisedTask

_MAX_BATCHES = 8
_MAX_EXAMPLES = 1024


_faultless: set[Hashable] = set()
"""Keys of steps that were traced without a fault."""


def steps_identity(experiment: Experiment) -> Hashable:
    """Returns a key that is equal for experiments whose steps have the same faults."""
    fingerprints = [data.fingerprint() for data in experiment.inputs_by_path.values()]
    return _traced_by(experiment, experiment.mesh.abstract()), tuple(fingerprints)


def _traced_by(experiment: Experiment, mesh: Arrangement) -> Hashable:
    inputs = experiment.inputs_by_path.items()
    specs = [
        (path, spec_key(data.element_spec()), spec_key(data.padded_spec())) for path, data in inputs
    ]
    return code_key(experiment.task), mesh, tuple(specs)


def check_steps(experiment: Experiment) -> None:
    """Traces the steps of an experiment on the shapes of its data, and looks at class labels.

    The devices of the mesh need not exist, so a size of -1 counts as 1.

    Raises:
        UserError: outputs, labels, metrics and the mesh do not fit together, or a label is no
            class.
        Exception: other code of the experiment raises while it is traced.
    """
    mesh = experiment.mesh.abstract()
    key = _traced_by(experiment, mesh)
    if key not in _faultless:
        element_spec = divisible(experiment.train_input.element_spec(), mesh)
        params_shardings(TracedSteps(experiment.task, mesh, element_spec).abstract_params, mesh)
        check_lengths(experiment, mesh)
        trace_steps(experiment, mesh)
        _faultless.add(key)
    for path, data in experiment.inputs_by_path.items():
        if not path.startswith('decode_inputs'):
            _check_labels(experiment.task, path, data)


def trace_steps(experiment: Experiment, mesh: Arrangement) -> None:
    """Traces a train step, and a step of each evaluation and decode set, on shapes alone.

    Sets whose examples have equal shapes are traced once.

    Raises:
        UserError: parts do not fit together. The message begins with the path.
        Exception: other code of the experiment raises while it is traced.
    """
    static_costs(experiment, mesh)
    traced = []
    for path, data in experiment.inputs_by_path.items():
        kind, spec = path.partition('_')[0], divisible(data.padded_spec(), mesh)
        known = kind, _examples(spec)
        with _at(path):
            check_suits(experiment, path, data)
            if kind != 'train' and known not in traced:
                _trace(experiment, mesh, spec, is_decoding=kind == 'decode')
        traced.append(known)


@contextlib.contextmanager
def _at(path: str) -> Iterator[None]:
    """Context manager that puts the path of an input before a message about it."""
    try:
        yield
    except UserError as error:
        if str(error).startswith('task'):
            raise
        with prefixed(path):
            raise


def _trace(
    experiment: Experiment, mesh: Arrangement, element_spec: ElementSpec, is_decoding: bool
) -> None:
    task = experiment.task
    trained = divisible(experiment.train_input.element_spec(), mesh)
    metrics, _, (variables, _, random_key, values) = abstract_metrics(task, trained, mesh)

    def traced(variables: Any, batch: Any, random_key: Any, values: Any) -> Any:
        if not is_decoding:
            return metrics(variables, batch, random_key, values, training=False)
        context = ForwardContext(dtype=jnp.dtype(task.fprop_dtype), mesh=mesh)
        return decode(bind(task, values), variables, batch, random_key, context)

    jax.eval_shape(traced, variables, dict(element_spec), random_key, values)


def _examples(spec: ElementSpec) -> dict[str, Any]:
    """Shapes and dtypes of one example."""
    return {name: (each.shape[1:], each.dtype) for name, each in spec.items()}


def _check_labels(task: Task, path: str, data: Input) -> None:
    classes = _num_classes(task, data.element_spec())
    if classes is None or not isinstance(task, SupervisedTask):
        return
    name = task.label_feature
    for batch in _batches(data):
        labels, weights = np.asarray(batch[name]), weights_of(batch, name, task.input_feature)
        if weights is not None:
            labels = labels[broadcast(np.asarray(weights), labels.shape) != 0]
        wrong = labels[(labels < 0) | (labels >= classes)]
        if not wrong.size:
            continue
        what = f'{path}: {name!r} has the label {wrong.flat[0]}'
        have = f'the model has outputs for {classes} classes, which are numbered 0 to {classes - 1}'
        raise UserError(f'{what}, but {have}. Number the labels from 0, or add outputs')


def _num_classes(task: Task, spec: ElementSpec) -> int | None:
    """Counts the classes that labels name by their numbers; None if labels may be anything."""
    if not isinstance(task, SupervisedTask) or _has_own_meaning(task):
        return None
    labels, kinds = spec[task.label_feature], (SoftmaxCrossEntropy, SigmoidCrossEntropy)
    has_classes = any(isinstance(each, kinds) for each in components(task.loss))
    if not has_classes or not jnp.issubdtype(labels.dtype, jnp.integer):
        return None
    outputs = abstract_outputs(task, spec)
    shape: tuple[int, ...] = getattr(outputs, 'shape', ())
    # A single logit stands for two classes.
    return max(shape[-1], 2) if len(shape) == len(labels.shape) + 1 else None


def _has_own_meaning(task: SupervisedTask) -> bool:
    """True if code of the user may change or leave out labels: in the loss, or the task."""
    made = [getattr(type(task), name) for name in ('measure', 'outcome', 'example_weights')]
    made += [type(each) for each in components(task.loss)]
    return any(each.__module__.partition('.')[0] not in OWN_PACKAGES for each in made)


def _batches(data: Input) -> Iterator[Batch]:
    """Yields all arrays of an input in memory, and the first batches of a copy of another one."""
    plain: tuple[tuple[Any, str], ...] = (
        (IndexedInput, 'get_next'),
        (ArraysInput, 'train_batch'),
        (ArraysInput, 'eval_batch'),
        (ArraysInput, 'augment'),
    )
    if isinstance(data, ArraysInput) and all(
        getattr(type(data), name) is getattr(base, name) for base, name in plain
    ):
        yield dict(data.arrays().features)
        return
    read = 0
    with (
        contextlib.closing(host_share(data, data.num_infeed_hosts, data.infeed_host_index)) as copy,
        contextlib.suppress(EndOfData, Signal),
    ):
        while read < min(_MAX_BATCHES * data.batch_size, _MAX_EXAMPLES):
            yield copy.get_next()
            read += data.batch_size
