"""The workloads of a search: an experiment, trials recorded in a table, and a function."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyglove as pg
from etils import epy

from paxtune.config import other_names
from paxtune.config.named_components import named_part
from paxtune.config.search import Search
from paxtune.running.define_by_run import require_own, traced
from paxtune.running.function_arguments import require_fitting, signature_of
from paxtune.running.function_fields import copied, how_to_search, objective_of, space_of
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.runner import Runner
from paxtune.schedulers.rungs import first_rung
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from paxtune.study.workload import RunnerWorkload
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.fields import fit
from trainer.symbolic.identity import validate_decisions
from trainer.symbolic.overrides import replaced, type_at
from trainer.symbolic.serialization import to_json_text

with epy.lazy_imports():  # They import JAX, and a study of a function has no use for it.
    from paxtune import experiment as experiments
    from paxtune.running import experiment_runner
    from trainer import experiment as trainer_experiment

C = TypeVar('C', bound=Component)

_ANY_SEARCH = Search(None)


@dataclasses.dataclass(frozen=True)
class Workload:
    """The work of a search: an experiment, or trials recorded in a table.

    Attributes:
        what: an experiment, a function, or recorded trials.
        exp: the name of the experiment on the command line, which the study shows.
        command: the module and the flags of the command, which reports show.
        base: an experiment before its decisions were opened; None where they are its own.
    """

    what: Any
    exp: str = ''
    command: Sequence[str] = ()
    base: Any = None

    @property
    def trains(self) -> bool:
        """True for an experiment, whose trials several processes can train together."""
        return not isinstance(self.what, RunnerWorkload)

    def plan(self, changes: Mapping[str, Any]) -> SearchPlan:
        """Compiles the plan of the search.

        Args:
            changes: fields of the search that differ, by path. Names of an algorithm and of a
                scheduler stand for these: 'random_search'.

        Raises:
            UserError: as `SearchPlan.compile`.
        """
        known = functools.partial(first_rung, self.what) if self.trains else dict
        made = _made(changes, self.what.search, known)
        value = _changed(self.what, {f'search.{name}': each for name, each in made.items()})
        data = value.data() if isinstance(value, RunnerWorkload) else None
        return SearchPlan.compile(value, None, data, self.exp, self.command, base=self.base)

    def runner(self) -> Runner:
        """Makes the runner of its trials."""
        made: Runner = experiment_runner.ExperimentRunner() if self.trains else self.what.runner()
        return made


@dataclasses.dataclass(frozen=True)
class FunctionWorkload(Workload):
    """Calls a function with the values of a trial: see `FunctionRunner`.

    Attributes:
        space: a symbolic value with decisions in it; None for the space of the study, or the
            decisions that a function without parameters makes itself.
        study: the study to continue, with its configuration; None for a new one.
    """

    space: Any = None
    study: Study | None = None

    @property
    def trains(self) -> bool:
        return False

    def plan(self, changes: Mapping[str, Any]) -> SearchPlan:
        value, search = copied(self._value()), self._configured(changes)
        require_fitting(self.what, value)
        return SearchPlan.compile(value, search, None, self.exp, self.command, self.what)

    def runner(self) -> FunctionRunner:
        return FunctionRunner(self.what)

    def why_not_in_workers(self) -> str | None:
        """The reason why trials cannot run in other processes; None if they can."""
        if self.study is not None:
            return 'the study is in memory'
        try:
            to_json_text(copied(self._value()))
        except UserError as error:
            return str(error)
        return self.runner().why_not_in_workers

    def _value(self) -> Any:
        space = self.space
        if space is None and self.study is not None:
            return self.study.value
        if space is None and not signature_of(self.what).parameters:
            return traced(self.what)
        if space is None:
            raise UserError(
                'space: a function with arguments needs one, such as {"x": pg.floatv(0.0, 1.0)}'
            )
        made = space_of(space)
        is_traced = isinstance(space, pg.hyper.DynamicEvaluationContext)
        if not (is_traced or signature_of(self.what).parameters):
            require_own(self.what, made)
        return made

    def _configured(self, changes: Mapping[str, Any]) -> Search:
        changes = _made(changes, None)
        if self.study is not None:
            search = self.study.search
        elif 'objective' in changes:
            search = Search(changes.pop('objective'))
        else:
            raise UserError("objective: say 'minimize' or 'maximize', or give a reward")
        return _changed(search, changes)


def workload_of(
    what: Any,
    space: Any = None,
    objective: Any = None,
    study: Study | None = None,
    **named: Any,
) -> Workload:
    """Makes the workload of an experiment, a function or recorded trials.

    Args:
        what: as of `paxtune.tune`.
        space: as of `paxtune.tune`.
        objective: as of `paxtune.tune`.
        study: as of `paxtune.tune`.
        **named: other attributes of `Workload`.

    Raises:
        UserError: the arguments do not fit together.
    """
    if isinstance(what, Workload):
        return what
    if isinstance(what, RunnerWorkload):
        if space is not None:
            raise UserError('space: recorded trials have a space of their own')
        return Workload(what, **named)
    if not isinstance(what, Component) or not isinstance(what, trainer_experiment.Experiment):
        if study is not None and space is not None:
            raise UserError(f'study: {study} has its own space: give no other one')
        return FunctionWorkload(what, space=space, study=study, **named)
    has_reward = objective is not None or isinstance(what, experiments.Tunable)
    if isinstance(objective, str) or not has_reward:
        raise UserError(
            'objective: an experiment without a search of its own needs a reward, such as '
            'MetricReward("minimize", "eval/loss")'
        )
    tunable = experiments.as_tunable(what, Search(None))
    if space is not None and not isinstance(space, Mapping):
        raise UserError('space: expected values by path, {"task.learner.learning_rate": …}')
    if space is None:
        return Workload(tunable, **named)
    return Workload(_with_values(tunable, space), base=tunable, **named)


def _with_values(tunable: 'experiments.Tunable', space: Mapping[str, Any]) -> 'experiments.Tunable':
    """Replaces values by path; an error says how a decision is written that others write so."""
    validate_decisions(dict(space))
    try:
        return replaced(tunable, space, 'space')
    except UserError as error:
        hints = [how_to_search(each) for path, each in space.items() if path in str(error)]
        raise UserError(': '.join([str(error), *filter(None, hints[:1])])) from error


def _made(
    changes: Mapping[str, Any],
    search: Search | None,
    known: Callable[[], Mapping[str, float]] = dict,
) -> dict[str, Any]:
    """Makes the parts of changes that have names; raises UserError for a field that is unknown."""
    fields = [str(name) for name in Search.__schema__.fields]
    for name in changes:
        if name not in (*fields, 'budget.trials', 'budget.hours'):
            other = other_names.PYTHON.get(name)
            hint = nearest(name, [*fields, 'num_trials']) if other is None else f'Write {other}'
            raise UserError(f'a search has no {name!r}. {hint}'.rstrip())
    if (objective := changes.get('objective')) is not None:
        changes = {**changes, 'objective': objective_of(objective)}
    if isinstance(prior := changes.get('prior'), Mapping):
        listed = {path: list(one) if type(one) is tuple else one for path, one in prior.items()}
        changes = {**changes, 'prior': listed}
    made = {
        name: named_part(search, name, value, f'{name}={value!r}', known())
        if name in ('algorithm', 'scheduler') and isinstance(value, str)
        else value
        for name, value in changes.items()
    }
    for name, value in made.items():
        where = 'num_trials' if name == 'budget.trials' else name
        fit(type_at(_ANY_SEARCH, name, where), value, where, 'None')
    return made


def _changed(value: C, changes: Mapping[str, Any]) -> C:
    try:
        return value.clone(deep=True).rebind(changes, raise_on_no_change=False)
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix('search.')
        raise UserError(text.replace('budget: trials', 'num_trials')) from error
