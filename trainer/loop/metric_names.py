"""Names of the metrics of a run, before its first step."""

import functools
from collections.abc import Hashable, Mapping

import jax

from trainer import state as state_lib
from trainer.experiment import EVAL_TRAIN, Experiment
from trainer.metrics import Metrics, joined
from trainer.program.costs import COSTS
from trainer.program.step_functions import (
    ElementSpec,
    Values,
    abstract_metrics,
    abstract_params,
    abstract_step,
    spec_key,
)
from trainer.runtime.throughput import RESOURCE_METRICS, THROUGHPUT_METRICS
from trainer.state import TrainState
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import bind
from trainer.symbolic.errors import UserError, nearest
from trainer.task import Task

_known: dict[Hashable, set[str]] = {}


def certain_names(experiment: Experiment) -> set[str]:
    """Names of metrics that all experiments have, without tracing their steps."""
    losses = {f'{group}/loss' for group in ('train', *experiment.eval_inputs)}
    return {*COSTS, *RESOURCE_METRICS, *THROUGHPUT_METRICS, *losses}


def metric_names(experiment: Experiment) -> tuple[set[str], set[str]]:
    """Traces the steps of an experiment without open decisions; nothing is compiled or read.

    Returns:
        The names of its metrics; the prefixes of further ones, whose names the data determine.

    Raises:
        Exception: code of the experiment raises while it is traced.
    """
    names = certain_names(experiment)
    train, task = experiment.train_input, experiment.task
    batches = {name: data.padded_spec() for name, data in experiment.eval_inputs.items()}
    if experiment.train.evaluation.train_batch:
        batches[EVAL_TRAIN] = train.padded_spec()
    specs = tuple((name, spec_key(spec)) for name, spec in batches.items())
    identity = (code_key(task), spec_key(train.element_spec()), specs)
    if identity not in _known:
        _known[identity] = _traced(task, train.element_spec(), batches)
    more = {f'{name}/' for name, data in experiment.eval_inputs.items() if data.wants_scores}
    if experiment.train.decoding is not None:
        more |= {f'decode_{name}/' for name in experiment.decode_inputs}
    return names | _known[identity], more


def require_best_metric(experiment: Experiment) -> None:
    """Raises UserError unless the run measures the metric of its best checkpoint."""
    checkpoints = experiment.train.checkpoints
    if checkpoints is None or checkpoints.keep_best is None:
        return
    name, (names, more) = checkpoints.keep_best.metric, metric_names(experiment)
    if name not in names and not name.startswith(tuple(more)):
        raise UserError(
            f'train.checkpoints.keep_best.metric: {name!r} is not measured. '
            f'{nearest(name, names)} Measured: {", ".join(sorted(names))}.'
        )


def _traced(task: Task, train: ElementSpec, batches: Mapping[str, ElementSpec]) -> set[str]:
    metrics, state, (variables, batch, random_key, values) = abstract_metrics(task, train)

    matrices = state_lib.matrices(abstract_params(task, train))

    def train_step(state: TrainState, metrics: Metrics, values: Values) -> Metrics:
        learner = bind(task, values).learner
        mask = jax.tree.map(lambda _: True, state.params)
        gradients = learner.trained(state.params)
        update = learner.update(state, gradients, metrics['loss'], mask, matrices=matrices)
        return joined(metrics, update.metrics)

    if task.has_own_step:
        own, given = abstract_step(task, train)
        trained = jax.eval_shape(own, *given)[1]
    else:
        measured = jax.eval_shape(metrics, variables, batch, random_key, values)
        trained = jax.eval_shape(train_step, state, measured, values)
    found = {f'train/{name}' for name in trained}
    evaluate = functools.partial(metrics, training=False)
    for group, spec in batches.items():
        measured = jax.eval_shape(evaluate, state.variables, dict(spec), random_key, values)
        found |= {f'{group}/{name}' for name in measured}
    return found
