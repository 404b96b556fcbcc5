"""Feasibility of decisions, before a trial has them."""

from collections.abc import Mapping
from typing import Any

from paxtune.config.search import Search
from paxtune.objectives.limits import violation
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study.reasons import commonest
from paxtune.study.trial_experiments import values_of
from trainer.runtime import interrupt
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import UserError

# Errors of infeasible decisions. `Infeasible` is a ValueError.
_REFUSALS = (SkipTrial, ArithmeticError, LookupError, TypeError, ValueError)


class Feasibility:
    """Says which decisions of a space are feasible, and checks each of them once.

    Attributes:
        space: the search space.
        search: has the constraints and the limits.
    """

    def __init__(self, space: Space, search: Search) -> None:
        self.space, self.search = space, search
        self._reasons: dict[object, str | None] = {}

    @property
    def commonest_reason(self) -> str | None:
        """The most frequent reason for which decisions were infeasible; None without any."""
        # A copy: another thread may be adding to them.
        found = commonest(filter(None, list(self._reasons.values())))
        return found[0][1] if found else None

    def why_infeasible(self, decisions: Decisions) -> str | None:
        """Says why decisions are infeasible; None if they are not.

        Raises:
            InterruptRequested: see `trainer.runtime.interrupt.asking`.
        """
        interrupt.check()
        key = tuple(decisions.items())
        if key not in self._reasons:
            self._reasons[key] = self._find_reason(decisions)
        return self._reasons[key]

    def _find_reason(self, decisions: Decisions) -> str | None:
        try:
            values = values_of(self.space, decisions)
        except _REFUSALS as error:
            return str(error).split('\n')[0]
        except UserError as error:  # The changes of a sub-experiment do not fit.
            if not self.space.sub_experiments:
                raise
            return str(error).split('\n')[0]
        except Exception:
            return None  # A bug in the `check` of a component: the trial will report it.
        if (reason := self._violation(values)) is not None:
            return reason
        return self._too_costly(values) if self.space.is_tunable else None

    def is_excluded(self, values: Mapping[str, Any]) -> bool:
        """Returns True if a constraint excludes values of a trial."""
        return self._violation(values) is not None

    def _violation(self, values: Mapping[str, Any]) -> str | None:
        try:
            for value in values.values():
                for constraint in self.search.constraints:
                    constraint.require(value)
        # A constraint may have no value under some decisions; `validate_search` has seen others.
        except (UserError, *_REFUSALS) as error:
            return str(error).split('\n')[0]
        return None

    def _too_costly(self, parts: dict[str, Any]) -> str | None:
        # Imported here: it imports JAX, and a study of a function has no use for it.
        from paxtune.study.trial_costs import static_costs

        try:
            return violation(self.search.limits, static_costs(parts))
        except UserError as error:
            return str(error).split('\n')[0]
        except Exception:
            # A bug, or a signal, that came up while the model was traced: the trial will report it.
            return None
