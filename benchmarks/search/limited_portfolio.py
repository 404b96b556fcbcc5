"""The portfolio with other limits than its own."""

from benchmarks.search.methods import LIMITS, Searcher
from benchmarks.search.ours import Study
from benchmarks.search.problems import Problem
from paxtune.algorithms import Portfolio


class LimitedPortfolio(Portfolio):
    """The portfolio between two limits, in nats a trial; one limit twice is a step."""

    low: float
    high: float

    def gp_share(self, information: float) -> float:
        """The probability that the process suggests a trial."""
        if self.low == self.high:
            return float(information >= self.low)
        return (information - self.low) / (self.high - self.low)


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of the portfolio with the limits of that name."""
    low, high = LIMITS[name]
    return Study(LimitedPortfolio(low=low, high=high), problem, seed)
