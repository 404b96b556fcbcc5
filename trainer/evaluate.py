"""Evaluation over whole evaluation sets."""

from collections.abc import Iterator

import jax

from trainer.experiment import Experiment
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.metrics import Totals
from trainer.program import Program, Values
from trainer.state import TrainState


def evaluate(
    experiment: Experiment, program: Program, state: TrainState, values: Values
) -> dict[str, float]:
    """The metrics of each whole evaluation set, as `<name>/<metric>`."""
    metrics: dict[str, float] = {}
    for name, data in experiment.eval_inputs.items():
        totals, ahead = Totals(), None
        for batch in read_once(data):
            of_batch = program.eval_step(state.params, program.put(batch), values)
            if program.max_in_flight == 0:
                jax.block_until_ready(of_batch)
            if ahead is not None:  # The device is one batch ahead of the host.
                totals.add(jax.device_get(ahead))
            ahead = of_batch
        if ahead is not None:
            totals.add(jax.device_get(ahead))
        metrics |= {f'{name}/{metric}': mean for metric, mean in totals.means().items()}
    return metrics


def read_once(data: Input) -> Iterator[Batch]:
    """All batches of an evaluation input, from the first."""
    data.reset()
    while True:
        try:
            yield data.get_next()
        except EndOfData:
            return
