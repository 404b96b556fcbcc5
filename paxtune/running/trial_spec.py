"""Specifications of trials: plain data that a process needs to train one."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.running.runner import Reports
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study.record import Costs
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_costs import CostEstimate, estimate_costs, suffixed, wanted_by
from paxtune.study.trial_experiments import parts_of, reseeded
from paxtune.study.trial_paths import attempt_directories, attempt_directory
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.handover import fork_checkpoint, take_over
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.runtime import processes
from trainer.runtime.directory import JobPath, absolute, job_path
from trainer.runtime.wall_clock import CHECKPOINTS, INITIALIZATION, during
from trainer.symbolic.overrides import replaced
from trainer.warm_start_rules import Inheritance, Starts, WarmStart, listed


@dataclasses.dataclass(frozen=True)
class WarmStartSpec:
    """The start of a trial from the weights of another one: plain data.

    Attributes:
        trial: the number of the other trial.
        directory: its directory.
        inherits: adapt its weights to another architecture.
        is_adapted: it has adapters alone, which need the trial's own source beside them.
        overrides: changes of the experiment, by path.
    """

    trial: int
    directory: str
    inherits: bool = False
    is_adapted: bool = False
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changes(self, name: str, part: Tunable) -> dict[str, Any]:
        """Changes of the experiment, or of its part `name`, by path."""
        path = str(job_path(self.directory) / name / 'checkpoints')
        start: Starts = path
        own = part.train.init_from_checkpoint
        base = None if isinstance(own, Inheritance) or part.task.adapters is None else own
        if self.inherits:
            start = Inheritance(path, base)
        elif self.is_adapted and base is not None:
            start = [WarmStart(path), *listed(base)]
        return {**self.overrides, 'train.init_from_checkpoint': start}


@dataclasses.dataclass(frozen=True)
class TrialSpec:
    """The specification of a trial for the processes that train it: plain data.

    Attributes:
        trial: the number of the trial.
        decisions: by id.
        directory: of this attempt.
        earlier: the directories of the attempts before it.
        warm_start: the trial whose weights it begins with.
        replicate: the index of the replicate, from 1.
        parent_checkpoint: of a fork: the directories of the parent's attempts, newest first,
            and the step.
        forks: the directories of the attempts of the trial's own forks, with their steps.
        measured: timed costs of an earlier attempt, which are not timed again.
    """

    trial: int
    decisions: Decisions
    directory: str
    earlier: Sequence[str] = ()
    warm_start: WarmStartSpec | None = None
    replicate: int = 1
    parent_checkpoint: tuple[Sequence[str], int] | None = None
    forks: Sequence[tuple[Sequence[str], int]] = ()
    measured: Costs = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, study: StudyView, trial: Trial) -> 'TrialSpec':
        """Specifies a trial; raises ValueError if the study is in memory."""
        *earlier, own = attempt_directories(study.directory, trial)
        parent_checkpoint = None
        if trial.lineage.forked_from is not None:
            parent, step = trial.lineage.forked_from
            attempts = attempt_directories(study.directory, study.trial(parent))
            parent_checkpoint = attempts[::-1], step
        forks = [
            (attempt_directories(study.directory, other), origin[1])
            for other in (study.trials if trial.record.pauses else ())
            if (origin := other.lineage.forked_from) is not None and origin[0] == trial.id
            if not other.is_terminal
        ]
        return cls(
            trial.id,
            trial.by_id,
            own,
            earlier,
            _warm_start(study, trial),
            trial.lineage.replicate,
            parent_checkpoint,
            forks,
            trial.record.costs,
        )

    @during(INITIALIZATION)
    def experiments(self, space: Space) -> dict[str, Tunable]:
        """Makes the experiments of the trial: see `experiments`."""
        return _started(parts_of(space, self.decisions), self.warm_start, self.replicate)

    def prepared(self, parts: Mapping[str, Tunable], search: Search) -> 'PreparedTrial':
        """Estimates the costs of its experiments; raises as `estimate_costs`."""
        costs = estimate_costs(parts, search.limits, wanted_by(search, parts), self.measured)
        return PreparedTrial(self, parts, costs)

    @during(CHECKPOINTS)
    def begin(self, name: str = '') -> JobPath:
        """Copies the checkpoints that a run and its own forks begin with.

        Args:
            name: of the sub-experiment, where the trial has several.

        Returns:
            The directory of the run.

        Raises:
            CheckpointGoneError: a checkpoint that a fork begins with is missing.
        """
        folder = job_path(self.directory) / name
        if self.earlier:
            take_over([job_path(each) / name for each in self.earlier], folder)
        # Forks come first: a trial that continues may delete the checkpoints that they need.
        with processes.together():
            if processes.is_first():
                own = [self.directory, *reversed(self.earlier)]
                for attempts, step in self.forks:
                    # A later attempt takes over checkpoints of an earlier one, which may be newer.
                    if not any(
                        newest_checkpoint(job_path(each) / 'checkpoints') for each in attempts
                    ):
                        fork_checkpoint(own, step, attempts[-1])
                if self.parent_checkpoint is not None:
                    fork_checkpoint(*self.parent_checkpoint, self.directory)
            processes.agree()  # All processes wait until the checkpoints exist.
        return folder


@dataclasses.dataclass(frozen=True)
class PreparedTrial:
    """A trial that is ready to train.

    Attributes:
        spec: the specification of the trial.
        parts: its experiments, by sub-experiment ('' without any).
        costs: costs from before the first step. Each measurement repeats the timed ones.
    """

    spec: TrialSpec
    parts: Mapping[str, Tunable]
    costs: CostEstimate

    def train(self, should_interrupt: Callable[[], bool], by: Callable[..., Any] = run) -> Reports:
        """Trains the trial from where its last attempt ended, each experiment by `by`."""
        before, left = 0, len(self.parts)
        for name, experiment in self.parts.items():
            left -= 1
            costs = self.costs.measured.get(name, {})
            training = by(experiment, self.spec.begin(name), should_interrupt)
            with contextlib.closing(training) as reports:
                try:
                    for each in reports:
                        yield dataclasses.replace(
                            each,
                            step=before + each.step,
                            metrics=suffixed({**each.metrics, **costs}, name),
                            undefined={*suffixed(dict.fromkeys(each.undefined, 0.0), name)},
                            resumed_from=before + each.resumed_from if each.resumed_from else 0,
                            is_last=each.is_last and not left,
                        )
                except Interrupted as interrupted:
                    raise Interrupted(before + interrupted.step) from interrupted
            before += experiment.train.num_train_steps


def experiments(study: StudyView, trial: Trial) -> dict[str, Tunable]:
    """Lists the experiments of a trial in order, by sub-experiment ('' without any).

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = parts_of(study.space, trial.by_id)
    return _started(parts, _warm_start(study, trial), trial.lineage.replicate)


def _warm_start(study: StudyView, trial: Trial) -> WarmStartSpec | None:
    if trial.lineage.warm_start is None:
        return None
    parent = study.trial(trial.lineage.warm_start)
    directory = str(absolute(attempt_directory(study.directory, parent)))
    # A person who names a trial wants exactly its weights.
    inherits = trial.lineage.parent is not None
    overrides = dict(study.search.child_overrides) if inherits else {}
    of_parent = {} if inherits else parts_of(study.space, parent.by_id)
    is_adapted = any(part.task.adapters is not None for part in of_parent.values())
    return WarmStartSpec(parent.id, directory, inherits, is_adapted, overrides)


def _started(
    parts: Mapping[str, Tunable], start: WarmStartSpec | None, replicate: int
) -> dict[str, Tunable]:
    # A child sees its data in another order than its parent, and draws new units again.
    seed = replicate + (start.trial if start is not None and start.inherits else 0)
    seeded = {name: reseeded(part, seed) for name, part in parts.items()}
    if start is None:
        return seeded
    why = f'warm start from trial {start.trial}'
    return {name: replaced(part, start.changes(name, part), why) for name, part in seeded.items()}
