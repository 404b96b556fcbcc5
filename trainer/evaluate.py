"""Evaluation over whole evaluation sets."""

from collections.abc import Iterator

import jax

from trainer import processes
from trainer.experiment import Experiment
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.metrics import Totals
from trainer.program import Program, Values
from trainer.speed import Speed
from trainer.state import TrainState


def evaluate(
    experiment: Experiment, program: Program, state: TrainState, values: Values
) -> dict[str, float]:
    """The metrics of each whole evaluation set, as `<name>/<metric>`.

    With them `eval_steps_per_second`: batches of all sets together, reading included, compiling
    not.
    """
    metrics: dict[str, float] = {}
    speed = Speed()
    for name, data in experiment.eval_inputs.items():
        with speed.paused():
            eval_step = program.eval_step(data.element_spec())
        totals, ahead = Totals(), None
        for batch in _read_together(data, name):
            of_batch = eval_step(state.variables, program.put(batch), values)
            speed.count()
            if program.max_in_flight == 0:
                jax.block_until_ready(of_batch)
            if ahead is not None:  # The device is one batch ahead of the host.
                totals.add(jax.device_get(ahead))
            ahead = of_batch
        if ahead is not None:
            totals.add(jax.device_get(ahead))
        metrics |= {f'{name}/{metric}': value for metric, value in totals.values().items()}
    return metrics | {f'eval_{name}': rate for name, rate in speed.rates().items()}


def _read_together(data: Input, name: str) -> Iterator[Batch]:
    """All batches of an evaluation input, while the other processes read as many.

    Raises:
        RuntimeError: one of them has fewer.
    """
    for batch in read_once(data):
        if processes.agree(False):
            raise RuntimeError(
                f'eval_inputs.{name}: other processes have fewer batches; all must have as many'
            )
        yield batch
    processes.agree(True)


def read_once(data: Input) -> Iterator[Batch]:
    """All batches of an evaluation input, from the first."""
    data.reset()
    while True:
        try:
            yield data.get_next()
        except EndOfData:
            return
