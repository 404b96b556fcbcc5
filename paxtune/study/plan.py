"""The plan of a search: its space and configuration, built and validated once."""

import dataclasses
import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pyglove as pg

from paxtune.config.search import Search
from paxtune.schedulers.base import Scheduler
from paxtune.search_space.decisions import spec_to_json
from paxtune.search_space.space import Space
from paxtune.study import code_versions, provenance, stand_ins, usual_names
from paxtune.study.default_scheduler import default_scheduler
from paxtune.study.feasibility import Feasibility
from paxtune.study.known_values import known_values
from paxtune.study.record import CodeVersion, KnownDecision, PriorTrial, Provenance, StudyRecord
from paxtune.study.samples import first_fitting
from paxtune.study.validation import (
    validate_search,
    validate_space,
    validate_steps,
    validate_training,
)
from trainer.symbolic.component import unchecked
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text, to_json_text

_NAMED = 3


@dataclasses.dataclass(frozen=True)
class SearchPlan:
    """A compiled search: the space and the components that search it.

    Attributes:
        feasibility: of decisions.
        has_own_search: whether `space.value` holds the search, as a `Tunable` does.
        data: fingerprints of the data that trials see, by input.
        exp: the `--exp` of the command; '' without one.
        command: the module of the command and its flags; empty without one.
        function: the function that trials call; None for an experiment.
        known: known values by the id of their decision.
    """

    feasibility: Feasibility
    has_own_search: bool
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exp: str = ''
    command: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    known: Mapping[str, KnownDecision] = dataclasses.field(default_factory=dict)

    @classmethod
    def compile(
        cls,
        value: Any,
        search: Search | None = None,
        data: Mapping[str, str] | None = None,
        exp: str = '',
        command: Sequence[str] = (),
        function: Callable[..., Any] | None = None,
        base: Any = None,
    ) -> 'SearchPlan':
        """Builds a plan, and makes all checks of it.

        Args:
            value: a `Tunable`, or any other symbolic value with decisions in it.
            search: the configuration; None where `value.search` holds it.
            data: fingerprints of the data, by input. None prepares the data of an experiment, and
                checks its metrics and the lengths of its trials.
            exp: the `--exp` of the command.
            command: the module of the command and its flags.
            function: the function that trials call; None for an experiment.
            base: the experiment before its decisions were opened, whose values are known.

        Raises:
            UserError: the space cannot be searched, or not so.
            MissingDataError: data are not there, or do not suit the task.
        """
        space = Space(value)
        validate_space(space)
        feasibility = Feasibility(space, value.search if search is None else search)
        sample = functools.cache(functools.partial(first_fitting, space))
        validate_search(feasibility, sample)
        is_trained = data is None and space.is_tunable
        if is_trained:
            # Imported here: it imports JAX, and a study of a function has no use for it.
            from paxtune.study.data_fingerprints import fingerprints

            data = fingerprints(sample(0).values)
        named = usual_names.of_arguments(space) if function is not None else {}
        known = known_values(space, feasibility.search, base, named)
        plan = cls(feasibility, search is None, data or {}, exp, tuple(command), function, known)
        if is_trained:
            validate_steps(feasibility)
            validate_training(plan.search, plan.scheduler, space, sample)
        return plan

    @classmethod
    def of(cls, record: StudyRecord, source: str, may_lack_classes: bool = False) -> 'SearchPlan':
        """Rebuilds the plan of a stored study, which was valid; raises UserError if that fails.

        Args:
            may_lack_classes: the study is only read. Its trials make no experiments then.
        """
        texts, lacking = [record.value, record.search], ''
        if missing := stand_ins.missing_classes(*texts):
            lacking = _lacking(missing, record.exp, source)
            if not may_lack_classes:
                raise UserError(lacking)
            texts = [text and stand_ins.with_stand_ins(text, record.defaults) for text in texts]
        # Fields refuse stand-ins.
        with pg.enable_type_check(not missing), unchecked() if missing else nullcontext():
            value: Any = from_json_text(texts[0], object, source)
            search = getattr(value, 'search', None)
            if texts[1]:
                search = from_json_text(texts[1], Search, source)
        if not isinstance(search, Search):
            raise UserError(f'{source}: the study has no configuration of its search')
        space = Space(value)
        space.why_no_value = lacking
        return cls(Feasibility(space, search), not record.search, record.data, record.exp)

    @property
    def space(self) -> Space:
        """The search space; `space.value` is the searched value."""
        return self.feasibility.space

    @property
    def search(self) -> Search:
        """The configuration of the search."""
        return self.feasibility.search

    @functools.cached_property
    def scheduler(self) -> Scheduler | None:
        """The scheduler of the search, or the default one."""
        chosen = self.search.scheduler
        return default_scheduler(self.search, self.space)[0] if chosen == 'default' else chosen

    @functools.cached_property
    def code(self) -> CodeVersion:
        """The code of the users' classes and functions in this process."""
        return code_versions.current(self.space.value, self.search, self.function)

    def record(self, in_memory: bool, priors: Sequence[PriorTrial]) -> StudyRecord:
        """Makes the record of the study.

        Args:
            in_memory: whether the study is in memory. It is never read back, so its values may be
                of any class, and are not stored.
        """
        return StudyRecord(
            value=to_json_text(pg.Dict() if in_memory else self.space.value),
            search='' if self.has_own_search else to_json_text(self.search),
            spec=spec_to_json(self.space.spec),
            data=dict(sorted(self.data.items())),
            priors=tuple(priors),
            known=self.known,
            algorithm=type(self.search.algorithm).__name__,
            goals=tuple(reward.goal for reward in self.search.rewards),
            exp=self.exp,
            defaults={} if in_memory else stand_ins.defaults(self.space.value, self.search),
            uuid=uuid.uuid4().hex,
            provenance=Provenance() if in_memory else provenance.current(self.command),
            code=(self.code,),
        )


def _lacking(classes: Sequence[str], exp: str, source: str) -> str:
    modules = ', '.join(sorted({name.rpartition('.')[0] for name in classes}))
    more = f' and {len(classes) - _NAMED} more' if len(classes) > _NAMED else ''
    how = f'pass --exp={exp}, or import {modules} in Python' if exp else f'import {modules} first'
    if '__main__' in modules:
        how = 'open the study in the script or notebook that defines them'
    return f'{source}: the classes {", ".join(classes[:_NAMED])}{more} are not imported: {how}'
