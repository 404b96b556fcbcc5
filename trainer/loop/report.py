import dataclasses
from collections.abc import Mapping, Set


@dataclasses.dataclass(frozen=True)
class Report:
    """Metrics of a run at one step.

    A trained experiment reports after each evaluation. The metrics are then:

    - `train/<metric>` since the last report, `<name>/<metric>` of each evaluation set,
      `decode_<name>/<metric>` of each decode set, `eval_train/<metric>` if the loop asks for it;
    - the costs of `trainer.program.costs`, and the resources used since step 0
      (`loop.meter`);
    - the throughput (`runtime.throughput`), except after the first step of a process.

    Attributes:
        step: number of completed steps.
        metrics: values by name; not finite where training diverged, NaN where one is undefined.
        checkpoint: path of the checkpoint of this step, if there is one.
        resumed_from: the step that this process started from; 0 for a fresh run.
        is_last: True if no report follows.
        undefined: names of the metrics whose sums have no value here, as the AUC of one class.
    """

    step: int
    metrics: Mapping[str, float]
    checkpoint: str | None = None
    resumed_from: int = 0
    is_last: bool = False
    undefined: Set[str] = frozenset()


class Interrupted(Exception):
    """The run stopped on request. A checkpoint holds its state at `step`, if any are saved."""

    def __init__(self, step: int):
        super().__init__(f'interrupted at step {step}')
        self.step = step
