"""Metrics of the train steps: summed, fetched late, and checked for values that are not finite."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from trainer.metrics import Metrics, Totals, rows
from trainer.runtime.wall_clock import STEPS, during
from trainer.symbolic.errors import NonFiniteLossError

_MAX_SKIPPED = 10
"""Number of consecutive steps without finite gradients that end a run: it would not recover."""


_TOO_LARGE = (
    'have a norm of task.learner.skip.max_norm or more, so these steps were skipped: set it to '
    'more than a usual train/gradient_norm, or to None'
)


class TrainMetrics:
    """Training metrics since the last summary, and since the last evaluation."""

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """Starts empty, or from the result of `to_json`."""
        saved = saved or {}
        self._on_device: list[tuple[range, Metrics]] = []
        self._since_summary = Totals(saved.get('since_summary'))
        self._since_evaluation = Totals(saved.get('since_evaluation'))
        self._skipped_in_a_row = int(saved.get('skipped_in_a_row', 0))

    def add(self, steps: range, metrics: Metrics) -> None:
        """Adds the metrics of a step, or the stacked ones of several, without waiting for them."""
        self._on_device.append((steps, metrics))

    def since_summary(self, step: int) -> dict[str, float]:
        """Values since the last call, up to a step, without waiting for later steps.

        Raises:
            NonFiniteLossError: the loss or the gradients are not finite.
        """
        self._fetch(step)
        totals, self._since_summary = self._since_summary, Totals()
        return totals.values()

    def since_evaluation(self) -> dict[str, float | None]:
        """Values since `start_interval`, None where one is undefined.

        Raises:
            NonFiniteLossError: the loss or the gradients are not finite.
        """
        self._fetch()
        return self._since_evaluation.all_values()

    def start_interval(self) -> None:
        """Starts the interval that ends with the next evaluation.

        Separate from `since_evaluation`, because a restarted run may repeat an evaluation.
        """
        self._fetch()
        self._since_evaluation = Totals()

    def to_json(self) -> dict[str, Any]:
        """State from which a resumed run reports the same values."""
        self._fetch()
        totals = {'summary': self._since_summary, 'evaluation': self._since_evaluation}
        sums = {f'since_{name}': total.to_json() for name, total in totals.items()}
        return sums | {'skipped_in_a_row': self._skipped_in_a_row}

    @during(STEPS)
    def _fetch(self, until: int | None = None) -> None:
        due = [each for each in self._on_device if until is None or each[0][-1] <= until]
        self._on_device = self._on_device[len(due) :]
        for (steps, _), stacked in zip(due, jax.device_get([m for _, m in due]), strict=True):
            for step, metrics in zip(steps, rows(stacked, len(steps)), strict=True):
                self._require_finite(step, metrics)
                self._since_summary.add(metrics)
                self._since_evaluation.add(metrics)

    def _require_finite(self, step: int, metrics: Metrics) -> None:
        # The loss belongs to the parameters before the step, the gradients to those after it.
        for name, what in (('loss', 'training loss'), ('gradient_norm', 'norm of the gradients')):
            value = float(metrics[name].total)
            if not math.isfinite(value):
                raise NonFiniteLossError(f'the {what} is {value} at step {step}', step)
        skipped = 'skipped_steps' in metrics and float(metrics['skipped_steps'].total) > 0
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row >= _MAX_SKIPPED:
            is_large = 'skipped_for_norm' in metrics and float(metrics['skipped_for_norm'].total)
            why = _TOO_LARGE if is_large else 'are not finite, though the training loss is'
            raise NonFiniteLossError(
                f'the gradients of {_MAX_SKIPPED} steps in a row, up to step {step}, {why}', step
            )
