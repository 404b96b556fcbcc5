"""What the train steps measure: summed up, fetched late, and watched for what is not finite."""

import math
from typing import Any

import jax

from trainer.metrics import Metrics, Totals

_MOST_SKIPPED = 10
"""So many steps in a row without finite gradients end a run: it would not recover by itself."""


class NonFiniteLossError(FloatingPointError):
    """The training loss, or the norm of its gradients, became NaN or infinite.

    Attributes:
        step: the one whose batch that came of.
    """

    def __init__(self, message: str, step: int = 0) -> None:
        super().__init__(message)
        self.step = step

    def located(self, saved: tuple[int, str] | None) -> 'NonFiniteLossError':
        """The same with what is needed to look into it: the batch, and the last good checkpoint.

        Args:
            saved: the step and the path of that checkpoint; None where there is none.

        Example:
            >>> text = str(NonFiniteLossError('it is nan at step 7', 7).located((5, 'run/5')))
            >>> text[-40:]
            '--from_checkpoint=run/5 --skip_batches=1'
        """
        # Each step reads one batch, so its number is that of the step.
        look = ['--input=train_input', '--num_batches=1']
        last, before = 'there is no checkpoint from before that', 0
        if saved is not None:
            before, path = saved
            last = f'the last checkpoint from before that is {path}'
            look.append(f'--from_checkpoint={path}')
        if self.step > before + 1:
            look.append(f'--skip_batches={self.step - before - 1}')
        return NonFiniteLossError(
            f'{self}; {last}. Its batch is number {self.step} of train_input: '
            f'python -m trainer.inspect_input --exp=… {" ".join(look)}',
            self.step,
        )


class TrainMetrics:
    """Training metrics since the last summary, and since the last evaluation."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        """Starts anew, or from what `to_json` returned."""
        saved = saved or {}
        self._on_device: list[tuple[int, Metrics]] = []
        self._since_summary = Totals(saved.get('since_summary'))
        self._since_evaluation = Totals(saved.get('since_evaluation'))
        self._skipped_in_a_row = 0

    def add(self, step: int, metrics: Metrics) -> None:
        """Adds the metrics of a step without waiting for it."""
        self._on_device.append((step, metrics))

    def since_summary(self, step: int) -> dict[str, float]:
        """The values since the last call, up to a step; later ones are not waited for.

        Raises:
            NonFiniteLossError: they are not finite.
        """
        self._fetch(step)
        totals, self._since_summary = self._since_summary, Totals()
        return totals.values()

    def since_evaluation(self) -> dict[str, float]:
        """The values since `start_interval`.

        Raises:
            NonFiniteLossError: they are not finite.
        """
        self._fetch()
        return self._since_evaluation.values()

    def start_interval(self) -> None:
        """Starts the interval that ends with the next evaluation.

        Not done by `since_evaluation`: an evaluation may be repeated after a restart.
        """
        self._fetch()
        self._since_evaluation = Totals()

    def to_json(self) -> dict[str, Any]:
        """What a resumed run needs in order to report the same values."""
        self._fetch()
        totals = {'summary': self._since_summary, 'evaluation': self._since_evaluation}
        return {f'since_{name}': total.to_json() for name, total in totals.items()}

    def _fetch(self, until: int | None = None) -> None:
        due = [each for each in self._on_device if until is None or each[0] <= until]
        self._on_device = self._on_device[len(due) :]
        for (step, _), metrics in zip(due, jax.device_get([m for _, m in due]), strict=True):
            self._require_finite(step, metrics)
            self._since_summary.add(metrics)
            self._since_evaluation.add(metrics)

    def _require_finite(self, step: int, metrics: Metrics) -> None:
        # The loss is that of the parameters before the step, the gradients make those after it.
        for name, what in (('loss', 'training loss'), ('gradient_norm', 'norm of the gradients')):
            value = float(metrics[name].total)
            if not math.isfinite(value):
                raise NonFiniteLossError(f'the {what} is {value} at step {step}', step)
        skipped = 'skipped_steps' in metrics and float(metrics['skipped_steps'].total) > 0
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row >= _MOST_SKIPPED:
            raise NonFiniteLossError(
                f'the gradients of {_MOST_SKIPPED} steps in a row, up to step {step}, are not '
                'finite, though the training loss is',
                step,
            )
