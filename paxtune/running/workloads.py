"""The three workloads of a search: a function, an experiment, and trials recorded in a table."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyglove as pg
from etils import epy

from paxtune.config.named_components import named_part
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.running.define_by_run import traced
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.runner import Runner, RunnerWorkload
from paxtune.schedulers.rungs import first_rung
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.overrides import replaced

with epy.lazy_imports():  # They import JAX, and a study of a function has no use for it.
    from paxtune import experiment as experiments
    from paxtune.running import experiment_runner
    from trainer import experiment as trainer_experiment

if TYPE_CHECKING:
    from paxtune.experiment import Tunable

C = TypeVar('C', bound=Component)


class Workload(Protocol):
    """The work of a search: makes its plan, and the runner of its trials."""

    @property
    def trains(self) -> bool:
        """Returns True for an experiment, whose trials several processes can train together."""

    def plan(
        self, changes: Mapping[str, Any], exp: str = '', command: Sequence[str] = ()
    ) -> SearchPlan:
        """Compiles the plan of the search.

        Args:
            changes: fields of the search that differ, by path. Names of an algorithm and of a
                scheduler stand for these: 'random_search'.
            exp: as of `SearchPlan`.
            command: as of `SearchPlan`.

        Raises:
            UserError: as `SearchPlan.compile`.
        """

    def runner(self) -> Runner:
        """Makes the runner of its trials."""


class ExperimentWorkload:
    """Trains an experiment."""

    trains = True

    def __init__(self, tunable: 'Tunable') -> None:
        self._tunable = tunable

    def plan(
        self, changes: Mapping[str, Any], exp: str = '', command: Sequence[str] = ()
    ) -> SearchPlan:
        made = _made(changes, self._tunable.search, lambda: first_rung(self._tunable))
        return SearchPlan.compile(_changed(self._tunable, made), exp=exp, command=command)

    def runner(self) -> Runner:
        return experiment_runner.ExperimentRunner()


class FunctionWorkload:
    """Calls a function with the values of a trial: see `FunctionRunner`.

    Attributes:
        function: the function.
    """

    trains = False

    def __init__(self, function: Callable[..., Any], space: Any, study: Study | None) -> None:
        """Makes a workload.

        Args:
            function: a function, which makes its decisions itself where it has no parameters.
            space: a symbolic value with decisions in it; None for those of the function, or of
                the study.
            study: the study that goes on, and whose configuration counts; None for a new one.
        """
        self.function, self._space, self._study = function, space, study

    def plan(
        self, changes: Mapping[str, Any], exp: str = '', command: Sequence[str] = ()
    ) -> SearchPlan:
        value = pg.clone(self._value(), deep=True)
        return SearchPlan.compile(value, self._configured(changes), exp=exp, command=command)

    def runner(self) -> Runner:
        return FunctionRunner(self.function)

    def _value(self) -> Any:
        space = self._space
        if space is None and self._study is not None:
            return self._study.value
        if space is None and not inspect.signature(self.function).parameters:
            return traced(self.function)
        if space is None:
            raise UserError(
                'space: a function with arguments needs one, such as {"x": pg.floatv(0.0, 1.0)}'
            )
        if isinstance(space, pg.hyper.DynamicEvaluationContext):  # `pg.hyper.trace` returns it.
            space = space.hyper_dict
        value = pg.Dict(space) if type(space) is dict else space
        if not isinstance(value, pg.Object | pg.Dict):
            raise UserError(
                f'space: expected a dict or a symbolic object, not {type(space).__name__}'
            )
        return value

    def _configured(self, changes: Mapping[str, Any]) -> Search:
        changes = _made(changes, None)
        if isinstance(goal := changes.get('objective'), str):
            if goal not in ('minimize', 'maximize'):
                raise UserError(
                    f"objective: expected 'minimize', 'maximize' or a reward, not {goal!r}"
                )
            changes['objective'] = MetricReward(goal, 'objective')
        if self._study is not None:
            search = self._study.search.clone(deep=True)
        elif 'objective' in changes:
            search = Search(changes.pop('objective'))
        else:
            raise UserError("objective: say 'minimize' or 'maximize', or give a reward")
        search.rebind(changes, raise_on_no_change=False)
        return search


class TableWorkload:
    """Reads the trials from a table, or makes them in another way that its value knows."""

    trains = False

    def __init__(self, value: RunnerWorkload) -> None:
        self._value = value

    def plan(
        self, changes: Mapping[str, Any], exp: str = '', command: Sequence[str] = ()
    ) -> SearchPlan:
        value = _changed(self._value, _made(changes, self._value.search))
        return SearchPlan.compile(value, data=value.data(), exp=exp, command=command)

    def runner(self) -> Runner:
        return self._value.runner()


def workload_of(
    what: Any, space: Any = None, objective: Any = None, study: Study | None = None
) -> Workload:
    """Makes the workload of an experiment, a function or recorded trials.

    Args:
        what: as of `paxtune.tune`.
        space: as of `paxtune.tune`.
        objective: as of `paxtune.tune`.
        study: as of `paxtune.tune`.

    Raises:
        UserError: the arguments do not fit together.
    """
    if isinstance(what, RunnerWorkload):
        if space is not None:
            raise UserError('space: recorded trials have a space of their own')
        return TableWorkload(what)
    if not isinstance(what, Component) or not isinstance(what, trainer_experiment.Experiment):
        if study is not None and space is not None:
            raise UserError(f'study: {study} has its own space: give no other one')
        return FunctionWorkload(what, space, study)
    has_reward = objective is not None or isinstance(what, experiments.Tunable)
    if isinstance(objective, str) or not has_reward:
        raise UserError(
            'objective: an experiment without a search of its own needs a reward, such as '
            'MetricReward("minimize", "eval/loss")'
        )
    tunable = experiments.as_tunable(what, Search(None))
    if space is not None and not isinstance(space, Mapping):
        raise UserError('space: expected values by path, {"task.learner.learning_rate": …}')
    return ExperimentWorkload(tunable if space is None else replaced(tunable, space, 'space'))


def _made(
    changes: Mapping[str, Any],
    search: Search | None,
    known: Callable[[], Mapping[str, float]] = dict,
) -> dict[str, Any]:
    """Makes the parts of changes that have names; raises UserError for a field that is unknown."""
    fields = [str(name) for name in Search.__schema__.fields]
    for path in changes:
        if (name := path.split('.')[0]) not in fields:
            raise UserError(f'a search has no {name!r}. {nearest(name, fields)}'.rstrip())
    return {
        name: named_part(search, name, value, f'{name}={value!r}', known())
        if name in ('algorithm', 'scheduler') and isinstance(value, str)
        else value
        for name, value in changes.items()
    }


def _changed(value: C, changes: Mapping[str, Any]) -> C:
    copy: C = value.clone(deep=True)
    copy.rebind(
        {f'search.{name}': value for name, value in changes.items()}, raise_on_no_change=False
    )
    return copy
