import math
import re
from typing import Any, Literal

from trainer.inputs.base import Input
from trainer.layers.pipeline import Pipeline
from trainer.mesh import Mesh
from trainer.symbolic.component import Component, components, require_not_negative, require_positive
from trainer.symbolic.durations import seconds
from trainer.symbolic.html import html_table
from trainer.task import Task
from trainer.warm_start_rules import Starts, WarmStart

EVAL_TRAIN = 'eval_train'
"""Prefix of the metrics of an evaluation of the next training batch."""


class Evaluation(Component):
    """Evaluation while training: after every `every` steps, and after the last.

    Attributes:
        every: steps between evaluations.
        train_batch: evaluate the next training batch as well, before training on it:
            `eval_train/<metric>`. This costs an evaluation step, and its compilation where no
            evaluation set has batches of that shape.
    """

    every: int = 100
    train_batch: bool = False

    def check(self) -> None:
        require_positive(self, 'every')


class Decoding(Component):
    """Decoding while training: after every `every` steps, and after the last.

    Attributes:
        every: steps between decodes, a multiple of those between evaluations.
        start: the first step at which to decode.
    """

    every: int
    start: int = 0

    def check(self) -> None:
        require_positive(self, 'every')
        require_not_negative(self, 'start')


class BestCheckpoint(Component):
    """The checkpoint with the best value of a metric.

    Only checkpoints of evaluated steps are compared.

    Attributes:
        metric: its name, such as 'eval/loss'.
        goal: the direction in which the metric improves.
    """

    metric: str
    goal: Literal['minimize', 'maximize'] = 'minimize'


class LocalCheckpoints(Component):
    """Checkpoints in the memory or on a disk of each host, beside the durable ones.

    They are written while training continues, and a run resumes from one after the loss of a
    process. A host that is replaced has none: then all resume from the durable checkpoint. MaxText
    calls them emergency checkpoints (`local_checkpoint_directory`, `local_checkpoint_period`).

    Attributes:
        directory: such as '/dev/shm/runs'. Several runs may share it. It holds two copies of the
            state while a run lives, and a third while one is written.
        every: steps between local checkpoints, fewer than between durable ones.
    """

    directory: str
    every: int = 10

    def check(self) -> None:
        require_positive(self, 'every')
        if '://' in self.directory or not self.directory.startswith(('/', '~/')):
            raise ValueError(
                f'directory: expected an absolute path on each host, such as /dev/shm/runs, not '
                f'{self.directory!r}'
            )


class Checkpoints(Component):
    """Checkpoints of a run: written after every `every` steps, and after the last.

    Attributes:
        every: steps between checkpoints.
        keep: number of checkpoints to keep, the newest ones.
        keep_period: also keep one checkpoint per period for good: '30m', '12h', '1d'.
        keep_best: also keep the best checkpoint.
        local: more frequent checkpoints in the memory or on a disk of each host.
    """

    every: int = 100
    keep: int = 2
    keep_period: str | None = None
    keep_best: BestCheckpoint | None = None
    local: LocalCheckpoints | None = None

    def check(self) -> None:
        require_positive(self, 'every', 'keep')
        if self.local is not None and self.local.every >= self.every:
            raise ValueError(
                f'local.every ({self.local.every}) must be less than every ({self.every}): '
                'local checkpoints save the steps between durable ones'
            )
        if self.keep_period is not None:
            try:
                seconds(self.keep_period)
            except ValueError as error:
                raise ValueError(f'keep_period: {error}') from error


class TrainLoop(Component):
    """Length of the training and the work between its steps.

    Attributes:
        num_train_steps: optimizer steps of the run.
        evaluation: when to evaluate, and additional data besides `eval_inputs`.
        checkpoints: when to write checkpoints and which to keep. None writes no checkpoint, not
            even when the run is interrupted. The run still resumes from existing checkpoints.
        decoding: when to decode `decode_inputs`; None for never while training.
        summary_interval_steps: steps between summaries of the training metrics.
        max_inflight_steps: executions that may wait on the devices behind the dispatched one; 0
            waits for each. Several simulated devices always use 0.
        steps_per_execution: train steps that the devices do in one execution, and batches that they
            evaluate in one: a step of a tiny model is shorter than its dispatch. Steps with other
            work in between (evaluation, a checkpoint, a summary), and batches that are left, are
            executed singly. Interrupts wait for the end of an execution.
        gc_interval_steps: collect Python's garbage at this interval of steps, and at no other
            time, so that all hosts pause together; None leaves the schedule to Python.
        random_seed: seeds the initial weights and dropout.
        init_from_checkpoint: start from the weights of another run: the path of its `checkpoints`
            directory, for the newest, or of a step in there. All parameters and other variables of
            layers are loaded; the optimizer and the data start again, at step 0. A list of
            `WarmStart` maps arrays to sources by rules, and `Inheritance` also adapts shapes.
            `Pretrained` loads a directory of Hugging Face. A resumed run uses its own checkpoint.
    """

    num_train_steps: int = 1000
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints | None = Checkpoints()
    decoding: Decoding | None = None
    summary_interval_steps: int = 10
    max_inflight_steps: int = 2
    steps_per_execution: int = 1
    gc_interval_steps: int | None = None
    random_seed: int = 0
    init_from_checkpoint: Starts = None

    @property
    def intervals(self) -> list[int]:
        """Numbers of steps between two times of the same work after a step."""
        found = [self.evaluation.every, self.summary_interval_steps]
        found += [] if self.checkpoints is None else [self.checkpoints.every]
        found += [] if self.local_checkpoints is None else [self.local_checkpoints.every]
        return found + ([] if self.gc_interval_steps is None else [self.gc_interval_steps])

    @property
    def local_checkpoints(self) -> LocalCheckpoints | None:
        """The settings of local checkpoints; None without any."""
        return None if self.checkpoints is None else self.checkpoints.local

    @property
    def executes_several_steps(self) -> bool:
        """True if some executions have `steps_per_execution` steps, which are more than one."""
        return 1 < self.steps_per_execution <= min(self.num_train_steps, *self.intervals)

    def check(self) -> None:
        counts = 'num_train_steps', 'summary_interval_steps', 'gc_interval_steps'
        require_positive(self, *counts, 'steps_per_execution')
        require_not_negative(self, 'max_inflight_steps')
        if self.decoding is not None and self.decoding.every % self.evaluation.every:
            raise ValueError(
                f'decoding.every ({self.decoding.every}) must be a multiple of evaluation.every '
                f'({self.evaluation.every}): decoding is part of an evaluation'
            )
        self._check_best()
        starts = self.init_from_checkpoint
        if isinstance(starts, list):
            for field in ('load_optimizer', 'load_step'):
                own = [start for start in starts if isinstance(start, WarmStart)]
                if sum(start.sym_getattr(field) for start in own) > 1:
                    raise ValueError(
                        f'init_from_checkpoint: {field} can be true in one source only'
                    )

    def _check_best(self) -> None:
        if self.checkpoints is None or self.checkpoints.keep_best is None:
            return
        saved, evaluated = self.checkpoints.every, self.evaluation.every
        if saved < self.num_train_steps <= math.lcm(saved, evaluated):
            raise ValueError(
                f'checkpoints.keep_best compares checkpoints of evaluated steps, and only the last '
                f'step is one: let checkpoints.every ({saved}) be a multiple of evaluation.every '
                f'({evaluated}), or the reverse, below num_train_steps ({self.num_train_steps})'
            )


class Experiment(Component):
    """One training run: a task, its data, its mesh and its train loop.

    Attributes:
        task: the model, its learner, and the metrics.
        train_input: training batches.
        eval_inputs: evaluation sets by name; their metrics are named `<name>/<metric>`.
        decode_inputs: sets of prompts for the decoder of the task, by name; their metrics are named
            `decode_<name>/<metric>`, see `trainer.loop.decode_loop`.
        mesh: arrangement of the devices.
        train: steps, evaluation, checkpoints, seed.
        smoke: overrides, path to value, that shrink the experiment for `--smoke`.
        shared: named values, decisions included, that other values are derived from
            (`derived('shared.width')`).
    """

    task: Task
    train_input: Input
    eval_inputs: dict[str, Input] = {}
    decode_inputs: dict[str, Input] = {}
    mesh: Mesh = Mesh()
    train: TrainLoop = TrainLoop()
    smoke: dict[str, Any] = {}
    shared: dict[str, Any] = {}

    @property
    def inputs_by_path(self) -> dict[str, Input]:
        """All inputs, by their paths."""
        inputs = {'train_input': self.train_input}
        for field in ('eval_inputs', 'decode_inputs'):
            sets = self.sym_getattr(field).items()
            inputs |= {f'{field}.{name}': data for name, data in sets}
        return inputs

    def _repr_html_(self) -> str:
        parts = {'task.model': self.task.model, 'task.learner': self.task.learner}
        parts |= {name: self.sym_getattr(name) for name in self.sym_init_args if name != 'task'}
        rows = [
            [path, value.format(compact=True, hide_default_values=True)]
            for path, value in parts.items()
            if value
        ]
        return html_table(type(self).__name__, ['', 'without default values'], rows)

    def check(self) -> None:
        if not self.train_input.is_training:
            raise ValueError('train_input.is_training must be true')
        for field in ('eval_inputs', 'decode_inputs'):
            for name, data in self.sym_getattr(field).items():
                self._check_set(field, name, data)

    def without_effect(self) -> list[str]:
        """Settings that are legal, and do nothing in this run: one sentence for each."""
        learner, steps = self.task.learner, self.train.num_train_steps
        owners = {'task.learner': learner} | {
            f'task.learner.auxiliary_optimizers.{name}': each
            for name, each in learner.auxiliary_optimizers.items()
        }
        found = [
            f'{path}.schedule: {type(owner.schedule).__name__} ends at step {end} of {steps}. The '
            'factor of the learning rate stays the same from there on.'
            for path, owner in owners.items()
            if (end := owner.schedule.end) is not None and end < steps
        ]
        if (size := self.train.steps_per_execution) > 1 and not self.train.executes_several_steps:
            found.append(
                f'train.steps_per_execution: training does single steps. No {size} are without '
                f'other work in between, which is due every {min(steps, *self.train.intervals)}.'
            )
        if (decoding := self.train.decoding) is not None and not self.decode_inputs:
            found.append('train.decoding: there are no decode_inputs to decode.')
        elif decoding is not None and decoding.start > steps:
            found.append(f'train.decoding.start: step {decoding.start} is after the last, {steps}.')
        has_pipeline = any(isinstance(each, Pipeline) for each in components(self.task))
        if {self.mesh.stage, self.mesh.dcn_stage} != {1} and not has_pipeline:
            found.append(
                'mesh.stage: no Stack has a pipeline, so all devices run all layers, and gather '
                'the weights of each.'
            )
        return found

    def _check_set(self, field: str, name: str, data: Input) -> None:
        if (
            name in ('train', EVAL_TRAIN)
            or name.startswith('decode_')
            or '/' in name
            or ':' in name
        ):
            raise ValueError(
                f"{field}: {name!r} is an invalid name for a set: 'train', {EVAL_TRAIN!r}, names "
                "that begin with 'decode_' or contain '/' or ':' are ambiguous among metrics"
            )
        if not re.fullmatch(r'[A-Za-z0-9_-]+', name):
            raise ValueError(
                f'{field}: {name!r} is an invalid name for a set: use only letters, digits, _ and -'
            )
        if data.is_training:
            raise ValueError(f'{field}.{name}.is_training must be false')
