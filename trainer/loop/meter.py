"""Measurements of a run between its evaluations: training metrics, speed and spent resources."""

from typing import Any

import jax
from absl import logging

from trainer.loop.open_run import Run
from trainer.loop.train_metrics import TrainMetrics
from trainer.metrics import Metrics
from trainer.program import device_peaks
from trainer.program.costs import static_costs, tokens_per_step
from trainer.runtime import processes, step_events, wall_clock
from trainer.runtime.throughput import RESOURCE_METRICS, Throughput
from trainer.runtime.wall_clock import INITIALIZATION, during


class Meter:
    """Measures the steps of a run, and writes summaries of them.

    The spent resources are the tokens and seconds of all steps that led to the weights. Whatever
    continues from a checkpoint continues the counts: a new process, a new attempt, a fork, and a
    warm start with `load_step`. Other warm starts begin at 0.

    Tokens are counted by the task, with padding, over the batches of all processes. Seconds
    contain reading data and writing summaries, but no evaluations and no saves. The clock starts
    after the first step of a process, which also begins to read. It starts before a first
    execution of several steps.

    Attributes:
        costs: the costs of the experiment (`trainer.program.costs`).
        due: the last step with a summary, until that is written.
        throughput: the rates since the last report, and the clock.
    """

    @during(INITIALIZATION)
    def __init__(self, run: Run) -> None:
        """Continues the sums and counts of the checkpoint from which a run resumes."""
        self._run = run
        memory = float(run.program.device_memory_bytes())
        self.costs = static_costs(run.experiment) | {'device_memory_bytes': memory}
        self.due: int | None = None
        self.throughput = Throughput()
        self._tokens_per_step = int(tokens_per_step(run.experiment))
        self._every = run.loop.evaluation.every
        self._train = TrainMetrics(run.progress.train_metrics)
        spent = run.progress.spent
        self._tokens, self._seconds = int(spent.get('tokens', 0)), float(spent.get('seconds', 0))
        self._is_running = False
        kind = _devices(run)[0].device_kind
        if kind not in device_peaks.PEAKS:
            logging.info('train/mfu is left out: the peak FLOPs of %r are unknown', kind)

    def before(self, steps: range) -> None:
        """Prepares to measure an execution of steps."""
        if (steps[0] - 1) % self._every == 0:
            self._train.start_interval()
        if len(steps) > 1:
            self._start()

    def after(self, steps: range, metrics: Metrics) -> None:
        """Adds the metrics of an execution of steps, which the devices may not have finished."""
        self._train.add(steps, metrics)
        tokens = self._tokens_per_step * len(steps)
        self._tokens += tokens
        if self._is_running:
            self.throughput.count(tokens, len(steps))
        else:
            jax.block_until_ready(metrics)
            self._start()

    def summarize(self) -> None:
        """Writes the summary that is due, which waits for its step and for no later one.

        Raises:
            NonFiniteLossError: the loss or the gradients are not finite.
        """
        if (step := self.due) is None:
            return
        self.due = None
        metrics = self._train.since_summary(step) | self._rates()
        named = {f'train/{name}': value for name, value in metrics.items()}
        self._run.write(step, named)
        step_events.notify(step, named)

    def since_evaluation(self) -> dict[str, float | None]:
        """Waits for all steps, and returns their metrics and rates; a round of `processes`.

        A metric without a value is None.

        Raises:
            NonFiniteLossError: the loss or the gradients are not finite.
        """
        self.summarize()
        return self._train.since_evaluation() | processes.broadcast(self._rates())

    def spent(self) -> dict[str, float]:
        """The resources spent since step 0, as metrics; a round of `processes`."""
        counts = self._counts()
        flops = float(counts['tokens']) * self.costs['flops_per_token']
        values = float(counts['tokens']), flops, counts['seconds']
        return dict(zip(RESOURCE_METRICS, values, strict=True))

    def to_json(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Waits for all steps, while the clock runs; a round of `processes`.

        Returns:
            `train_metrics` and `spent` of a `Progress`.

        Raises:
            NonFiniteLossError: the loss or the gradients are not finite.
        """
        self.summarize()
        return self._train.to_json(), self._counts()

    def _counts(self) -> dict[str, float]:
        # All processes have the seconds of the first one.
        seconds = self._seconds + self.throughput.total_seconds()
        counts: dict[str, float] = processes.broadcast({'tokens': self._tokens, 'seconds': seconds})
        return counts

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self.throughput.start()

    def _rates(self) -> dict[str, float]:
        rates = self.throughput.rates()
        if 'tokens_per_second' in rates:
            flops = rates['tokens_per_second'] * self.costs['flops_per_token']
            mfu = device_peaks.utilization(flops, _devices(self._run))
            rates |= {} if mfu is None else {'mfu': mfu}
            if (clock := wall_clock.current()) is not None:
                rates |= {'goodput': wall_clock.goodput(clock.whole) or 0.0}
        return rates


def _devices(run: Run) -> list[jax.Device]:
    return list(run.program.mesh.devices.flat)
