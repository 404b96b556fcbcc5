"""Any algorithm of Vizier's."""

from typing import Any

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.external import import_path
from paxtune.algorithms.external.vizier_problem import (
    METADATA,
    FlatProblem,
    designers_jax,
    metadata_text,
)
from trainer.symbolic.errors import UserError, in_short

_MAX_TRIES = 5  # A designer may take seconds.


class VizierDesigner(Algorithm):
    """Lets a Vizier `Designer` suggest the trials: one of Vizier's own, or of yours.

    Each suggestion is made by a new designer that is shown all trials, so a designer must not rely
    on its own earlier suggestions (as Vizier says of all but the "serializable" ones, of which
    `Eagle` is here ready to use). It sees a space without conditions, as `FlatProblem` describes;
    trials that run are ACTIVE, infeasible ones are marked so, and what it noted of its suggestions
    is with the trials. Rewards are metrics to be maximized.

    An argument `seed` is given unless `kwargs` has one, or `rng`, which is a JAX key. A class that
    has a method `from_problem` is made by it. What is suggested and has been tried, or is
    infeasible, is left out; after 5 of these a random experiment is taken.

    Attributes:
        designer: the dotted path of a class, or of a function that says that it returns one and
            takes a `vz.ProblemStatement`; see `paxtune.algorithms.external.import_path` for what
            may be named.
        kwargs: its other arguments: numbers, strings, lists and dictionaries.
    """

    designer: str
    kwargs: dict[str, Any] = {}

    @property
    def maker(self) -> str:
        """The dotted path of what is used."""
        return str(self.designer)

    def check(self) -> None:
        import_path.plain(self.kwargs, 'kwargs')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        if not num_objectives:
            raise UserError(
                f'search.algorithm: {self.designer} needs a reward, to know the better trials by.'
            )
        problem = FlatProblem(spec, num_objectives)
        if not len(problem):
            return
        with designers_jax():
            make = self._maker()
            try:
                designer = self._made(make, problem, 0)
                _show(designer, [], [])
                for suggestion in designer.suggest(1):
                    problem.decisions(suggestion.parameters.as_dict())
            except Exception as error:
                raise UserError(
                    f'search.algorithm: {self.designer} cannot search this: '
                    f'{type(error).__name__}: {in_short(error)}. RandomSearch and '
                    'RegularizedEvolution can.'
                ) from error

    def suggest(self, context: SuggestionContext) -> Suggestion:
        scores = (trial.scores for trial in context.observations if trial.scores)
        problem = FlatProblem(context.spec, len(next(scores, (0.0,))))
        if len(problem):
            seed = import_path.seed_of(context.seed, context.number)
            with designers_jax():
                designer = self._made(self._maker(), problem, seed)
                _show(designer, *problem.trials(context.observations))
                for _ in range(_MAX_TRIES):
                    for suggestion in designer.suggest(1):
                        decisions = problem.decisions(suggestion.parameters.as_dict())
                        if context.is_eligible(decisions):
                            algorithm_state = {METADATA: metadata_text(suggestion.metadata)}
                            return Suggestion(decisions, algorithm_state=algorithm_state)
        return Suggestion(draw_eligible(context, context.rng()))

    def _maker(self) -> Any:
        from vizier import algorithms as vza

        make = import_path.find(self.designer, vza.Designer, 'search.algorithm.designer')
        return getattr(make, 'from_problem', make) if isinstance(make, type) else make

    def _made(self, make: Any, problem: FlatProblem, seed: int) -> Any:
        import jax
        from vizier import algorithms as vza

        given = import_path.plain(self.kwargs, 'search.algorithm.kwargs')
        asked = import_path.parameters(make)
        if 'seed' in asked:
            given = {'seed': seed, **given}
        elif 'rng' in asked:
            given = {'rng': jax.random.PRNGKey(seed), **given}
        designer = make(problem.statement, **given)
        if not isinstance(designer, vza.Designer):
            raise TypeError(f'it returned a {type(designer).__name__}')
        return designer


def _show(designer: Any, ended: list[Any], active: list[Any]) -> None:
    from vizier import algorithms as vza

    designer.update(vza.CompletedTrials(ended), vza.ActiveTrials(active))
