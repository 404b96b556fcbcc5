import inspect
from typing import Any

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.external import import_path
from paxtune.algorithms.external.vizier_problem import (
    METADATA,
    FlatProblem,
    jax_for_designers,
    metadata_text,
    require_extra,
)
from trainer.symbolic.errors import UserError, in_short

_MAX_TRIES = 5  # A designer may take seconds.


class VizierDesigner(Algorithm):
    """Adapts a Vizier `Designer`: one of Vizier's own, or a user's.

    A new designer makes each suggestion from all trials. It must not rely on its own earlier
    suggestions, as Vizier requires of all but "serializable" designers (`Eagle` adapts one of
    these). It sees a space without conditions, as `FlatProblem` describes. Running trials are
    ACTIVE, infeasible ones are marked, and the metadata of suggestions is attached to the trials.
    Rewards are metrics to be maximized.

    An argument `seed` is given unless `kwargs` has one, or `rng`, which is a JAX key. A class with
    a method `from_problem` is created by it. Suggestions that were tried or are infeasible are
    skipped; after 5 of these a random experiment follows.

    Attributes:
        designer: import path of a class, or of a function with this return type that takes a
            `vz.ProblemStatement`; see `paxtune.algorithms.external.import_path` for the rules.
        kwargs: its other arguments: numbers, strings, lists and dictionaries.
    """

    designer: str
    kwargs: dict[str, Any] = {}

    @property
    def factory(self) -> str:
        """Import path of the class or function."""
        return str(self.designer)

    def check(self) -> None:
        import_path.to_plain(self.kwargs, 'kwargs')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, name=self.designer)
        require_extra(self.designer)
        problem = FlatProblem(spec, num_objectives)
        if not len(problem):
            return
        with jax_for_designers():
            make = self._maker()
            try:
                designer = self._create(make, problem, 0)
                _update(designer, [], [])
                for suggestion in designer.suggest(1):
                    problem.decisions(suggestion.parameters.as_dict())
            except Exception as error:
                raise UserError(
                    f'search.algorithm: {self.designer} cannot search this space: '
                    f'{type(error).__name__}: {in_short(error)}. Use RandomSearch or '
                    'RegularizedEvolution.'
                ) from error

    def suggest(self, context: SuggestionContext) -> Suggestion:
        scores = (trial.scores for trial in context.observations if trial.scores)
        problem = FlatProblem(context.spec, len(next(scores, (0.0,))))
        if len(problem):
            seed = import_path.derive_seed(context.seed, context.number)
            with jax_for_designers():
                designer = self._create(self._maker(), problem, seed)
                _update(designer, *problem.trials(context.observations))
                for _ in range(_MAX_TRIES):
                    for suggestion in designer.suggest(1):
                        decisions = problem.decisions(suggestion.parameters.as_dict())
                        if context.is_eligible(decisions):
                            state = {METADATA: metadata_text(suggestion.metadata)}
                            return Suggestion(decisions, algorithm_state=state)
        return Suggestion(draw_eligible(context, context.rng()))

    def _maker(self) -> Any:
        from vizier import algorithms as vza

        make = import_path.resolve(self.designer, vza.Designer, 'search.algorithm.designer')
        return getattr(make, 'from_problem', make) if isinstance(make, type) else make

    def _create(self, make: Any, problem: FlatProblem, seed: int) -> Any:
        import jax
        from vizier import algorithms as vza

        given = import_path.to_plain(self.kwargs, 'search.algorithm.kwargs')
        accepted = inspect.signature(make).parameters
        if 'seed' in accepted:
            given = {'seed': seed, **given}
        elif 'rng' in accepted:
            given = {'rng': jax.random.PRNGKey(seed), **given}
        designer = make(problem.statement, **given)
        if not isinstance(designer, vza.Designer):
            raise TypeError(f'it returned a {type(designer).__name__}')
        return designer


def _update(designer: Any, ended: list[Any], active: list[Any]) -> None:
    from vizier import algorithms as vza

    designer.update(vza.CompletedTrials(ended), vza.ActiveTrials(active))
