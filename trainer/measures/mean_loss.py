from trainer.losses import Loss
from trainer.measures.base import Measure, Outcome
from trainer.metrics import WeightedScalar


class MeanLoss(Measure):
    """The mean of any loss, such as the squared error, as a metric.

    Attributes:
        name: of the metric, such as 'mean_squared_error'.
        loss: its mean is the metric.
    """

    name: str
    loss: Loss

    def metric_name(self) -> str:
        return self.name

    def measure(self, outcome: Outcome) -> WeightedScalar:
        return WeightedScalar.of(
            self.loss.per_example(outcome.outputs, outcome.labels), outcome.weights
        )
