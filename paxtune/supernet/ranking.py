"""Ranking of the paths of a supernet by evaluation with its shared weights."""

import contextlib
import dataclasses
from collections.abc import Callable

from paxtune.algorithms import (
    Algorithm,
    Exhausted,
    Observation,
    RegularizedEvolution,
    SuggestionContext,
)
from paxtune.config.search import Search
from paxtune.objectives.rewards import NonFiniteRewardError, Reward, measured_rewards
from paxtune.search_space.decisions import Decisions
from paxtune.study.feasibility import Feasibility
from paxtune.study.trial_costs import static_costs
from paxtune.study.trial_experiments import parts_of
from paxtune.supernet.supernet import Supernet
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.loop.evaluate import evaluate
from trainer.loop.run_inputs import RunInputs
from trainer.metrics import with_nan
from trainer.program.setup import compiled, localized
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import frozen_parameters


@dataclasses.dataclass(frozen=True)
class RankedPath:
    """A path with its reward.

    Attributes:
        decisions: by id.
        reward: with the shared weights.
    """

    decisions: Decisions
    reward: float


class PathEvaluator:
    """Computes rewards of paths with the weights of a trained supernet.

    One compiled step evaluates all paths, on the same batches.

    Attributes:
        state: of the supernet.
    """

    def __init__(self, supernet: Supernet, reward: Reward, directory: JobPath) -> None:
        """Loads the newest checkpoint of the run in a directory; UserError without one."""
        self._supernet, self._reward = supernet, reward
        self._experiment = localized(supernet.experiment)
        self._program, self._values = compiled(self._experiment)
        path = directory / 'checkpoints'
        with contextlib.closing(CheckpointStore(path)) as checkpoints:
            frozen = frozen_parameters(self._experiment, self._program, self._values)
            restored = checkpoints.restore(self._program.abstract_state, frozen)
        if restored is None:
            raise UserError(f'there is no checkpoint of a supernet in {path}')
        self.state, self._progress = restored.state, restored.progress

    def metrics(self, decisions: Decisions) -> dict[str, float]:
        """Evaluates a path on the evaluation sets."""
        RunInputs(self._experiment, self._program.data_shard).resume_evaluation(self._progress)
        chosen = self._program.replicated(self._supernet.numbers(decisions))
        values = {**self._values, **chosen}
        return with_nan(evaluate(self._experiment, self._program, self.state, values))

    def reward(self, decisions: Decisions) -> float | None:
        """Computes the reward of a path; None if it is not finite.

        Raises:
            UserError: the reward needs metrics that evaluation does not measure.
        """
        metrics = self.metrics(decisions)
        with contextlib.suppress(NonFiniteRewardError):
            found = measured_rewards([self._reward], metrics)
            if not found:
                metrics |= static_costs(parts_of(self._supernet.space, decisions))
                found = (self._reward.value(metrics),)
            return found[0]
        return None


def ranked(
    supernet: Supernet,
    search: Search,
    reward_of: Callable[[Decisions], float | None],
    num_paths: int,
    algorithm: Algorithm | None = None,
) -> list[RankedPath]:
    """Evaluates paths, and returns them from best to worst.

    Constraints and limits of the search hold for paths as for trials. All paths are evaluated
    where there are no more than `num_paths`.

    Args:
        supernet: the space of paths.
        search: with one reward.
        reward_of: computes the reward of a path.
        num_paths: the largest number of evaluated paths.
        algorithm: proposes paths; regularized evolution by default, as in Guo et al. 2019.

    Raises:
        UserError: no path is feasible, or none has a finite reward.
    """
    (reward,) = search.rewards
    algorithm = algorithm or RegularizedEvolution()
    feasibility = Feasibility(supernet.space, search)
    observations: list[Observation] = []
    found: list[tuple[float, RankedPath]] = []

    def why_infeasible(path: Decisions) -> str | None:
        if supernet.numbers(path) is None:
            return 'a layer of the path is infeasible'
        return feasibility.why_infeasible(path)

    for number in range(1, num_paths + 1):
        context = SuggestionContext(
            supernet.space.spec, search.seed, number, lambda: observations, why_infeasible
        )
        try:
            path = algorithm.suggest(context).decisions
        except Exhausted:
            break
        value = reward_of(path)
        if value is None:
            observations.append(Observation(number, path, 'infeasible'))
            continue
        score = reward.score(value)
        observations.append(Observation(number, path, 'completed', (score,)))
        found.append((score, RankedPath(path, value)))
    if not observations:
        raise UserError(f'no path is feasible: {feasibility.commonest_reason}')
    if not found:
        raise UserError(f'none of {len(observations)} paths has a finite reward')
    return [path for _, path in sorted(found, key=lambda pair: -pair[0])]
