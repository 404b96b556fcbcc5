import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax

from trainer.experiment import EVAL_TRAIN, Experiment
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.evaluation import eval_batches
from trainer.inputs.peek import Peekable
from trainer.metrics import Metrics, Totals, joined, rows
from trainer.program.program import Program
from trainer.program.step_functions import Scores, Values
from trainer.runtime import processes
from trainer.runtime.throughput import Throughput
from trainer.state import TrainState

T = TypeVar('T')


def evaluate(
    experiment: Experiment, program: Program, state: TrainState, values: Values
) -> dict[str, float | None]:
    """Evaluates each set, as a whole unless its input limits the batches.

    Returns:
        `<name>/<metric>` of each set, None where it is undefined, and `eval_steps_per_second`:
        batches of all sets together, reading included, compilation excluded.
    """
    metrics: dict[str, float | None] = {}
    throughput = Throughput()
    for name, data in experiment.eval_inputs.items():
        size = experiment.train.steps_per_execution
        with throughput.paused():
            steps = {count: _step(program, data, count) for count in sorted({1, size})}
        totals, scores = Totals(), dict[int, float]()
        outputs = (
            (len(group), steps[len(group)](state.variables, program.put(*group), values))
            for group in _groups(read_together(data, f'eval_inputs.{name}'), size)
        )
        for count, (of_batches, scored) in one_ahead(program, outputs):
            throughput.count(steps=count)
            for of_batch in rows(of_batches, count):
                totals.add(of_batch)
            if scored is not None:
                ids, log_probs = scored.example_ids_B.ravel(), scored.log_probs_B.ravel()
                scores |= zip(ids.tolist(), log_probs.tolist(), strict=True)
        of_set = joined(data.score_metrics(scores), totals.all_values())
        metrics |= {f'{name}/{metric}': value for metric, value in of_set.items()}
    return metrics | {f'eval_{name}': rate for name, rate in throughput.rates().items()}


def _groups(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Yields groups of `size` batches, and each remaining batch alone."""
    while group := list(itertools.islice(batches, size)):
        if len(group) == size:
            yield group
        else:
            processes.agree(False)  # Another process may have more batches, which is an error.
            yield from ([batch] for batch in group)


def _step(
    program: Program, data: Input, count: int
) -> Callable[..., tuple[Metrics, Scores | None]]:
    eval_step = program.eval_step(data.padded_spec(), count)
    score_step = program.score_step(data.padded_spec(), count) if data.wants_scores else None

    def step(*args: Any) -> tuple[Metrics, Scores | None]:
        return eval_step(*args), None if score_step is None else score_step(*args)

    return step


def one_ahead(program: Program, outputs: Iterable[T]) -> Iterator[T]:
    """Yields each output on the host, while the devices compute the next one."""
    ahead = None
    for output in outputs:
        if program.max_in_flight == 0:
            jax.block_until_ready(output)
        if ahead is not None:
            yield jax.device_get(ahead)
        ahead = output
    if ahead is not None:
        yield jax.device_get(ahead)


def evaluate_next(
    data: Peekable, experiment: Experiment, program: Program, state: TrainState, values: Values
) -> dict[str, float | None]:
    """Evaluates the next training batch, if any, as `eval_train/…`, before the run trains on it."""
    try:
        batch = data.peek_padded()
    except EndOfData:
        batch = None
    if processes.agree(batch is None) or batch is None:
        return {}
    eval_step = program.eval_step(experiment.train_input.padded_spec())
    totals = Totals()
    totals.add(jax.device_get(eval_step(state.variables, program.put(batch), values)))
    return {f'{EVAL_TRAIN}/{metric}': value for metric, value in totals.all_values().items()}


def read_together(data: Input, path: str) -> Iterator[Batch]:
    """Reads the batches of a set; raises RuntimeError if another process has fewer."""
    for batch in eval_batches(data):
        if processes.agree(False):
            raise RuntimeError(f'{path}: other processes have fewer batches; all must have as many')
        yield batch
    processes.agree(True)
