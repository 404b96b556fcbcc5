"""Experiments: everything that one training run is made of, in one symbolic object."""

import re
from typing import Any, Literal

from trainer.inputs.base import Input
from trainer.mesh import Mesh
from trainer.symbolic.component import Component, require_positive
from trainer.symbolic.durations import seconds
from trainer.task import Task
from trainer.warm_start_rules import WarmStart

EVAL_TRAIN = 'eval_train'
"""What the evaluation of the next training batch is called among the metrics."""


class TrainLoop(Component):
    """How long to train, and what happens in between. Intervals are in steps.

    Attributes:
        num_train_steps: optimizer steps of the run.
        eval_interval_steps: evaluate after every so many steps, and after the last.
        eval_skip_train: leave it at the evaluation sets. If false, the next training batch is
            evaluated with them, before it is trained on: `eval_train/<metric>`. It costs an
            evaluation step, and to compile it where no evaluation set has batches of that shape.
        enable_checkpoint_saving: false writes no checkpoint, also when the run is interrupted: it
            goes on from those that are there, and what it does itself is lost when it ends.
        save_interval_steps: write a checkpoint after every so many steps, and after the last.
        save_max_to_keep: checkpoints to keep, the newest ones.
        save_keep_interval_duration: keep one for good every so often as well: '30m', '12h', '1d'.
        save_best_metric: keep the one as well at which this metric was best, such as 'eval/loss'.
            Saves and evaluations must meet: only a checkpoint whose step was evaluated is judged.
        save_best_goal: what best means.
        decode_interval_steps: decode after every so many steps, a multiple of
            `eval_interval_steps`, and after the last; None for never while training.
        decode_start_after_n_steps: not before this step.
        summary_interval_steps: write training metrics after every so many steps.
        max_inflight_steps: steps that may be under way on the devices behind the one that is
            dispatched; 0 waits for each. On several simulated devices it is always 0.
        gc_interval_steps: collect Python's garbage after every so many steps, and at no other
            time, so that all hosts pause together; 0 leaves it to Python.
        random_seed: seeds the initial weights and dropout.
        init_from_checkpoint: start with what another run has learnt: the path of its
            `checkpoints` directory, for the newest, or of a step in there. All parameters, and
            what else layers keep, are loaded; the optimizer and the data start anew, at step 0. Or
            a list of `WarmStart`, which say by rules what is loaded from where. A run that resumes
            goes on from its own checkpoint.
    """

    num_train_steps: int = 1000
    eval_interval_steps: int = 100
    eval_skip_train: bool = True
    enable_checkpoint_saving: bool = True
    save_interval_steps: int = 100
    save_max_to_keep: int = 2
    save_keep_interval_duration: str | None = None
    save_best_metric: str | None = None
    save_best_goal: Literal['minimize', 'maximize'] = 'minimize'
    decode_interval_steps: int | None = None
    decode_start_after_n_steps: int = 0
    summary_interval_steps: int = 10
    max_inflight_steps: int = 2
    gc_interval_steps: int = 0
    random_seed: int = 0
    init_from_checkpoint: str | list[WarmStart] | None = None

    def check(self) -> None:
        require_positive(
            self,
            'num_train_steps',
            'eval_interval_steps',
            'save_interval_steps',
            'save_max_to_keep',
            'decode_interval_steps',
            'summary_interval_steps',
        )
        every = self.decode_interval_steps
        if every is not None and every % self.eval_interval_steps:
            raise ValueError(
                f'decode_interval_steps ({every}) must be a multiple of eval_interval_steps '
                f'({self.eval_interval_steps}): what is decoded is measured with an evaluation'
            )
        for name in ('max_inflight_steps', 'gc_interval_steps', 'decode_start_after_n_steps'):
            if self.sym_getattr(name) < 0:
                raise ValueError(f'{name} must not be negative: {self.sym_getattr(name)}')
        if self.save_best_metric is not None and not self.enable_checkpoint_saving:
            raise ValueError('save_best_metric needs enable_checkpoint_saving')
        starts = self.init_from_checkpoint
        if isinstance(starts, list):
            for field in ('load_optimizer', 'load_step'):
                if sum(start.sym_getattr(field) for start in starts) > 1:
                    raise ValueError(
                        f'init_from_checkpoint: {field} can be true in one source only'
                    )
        if self.save_keep_interval_duration is not None:
            try:
                seconds(self.save_keep_interval_duration)
            except ValueError as error:
                raise ValueError(f'save_keep_interval_duration: {error}') from error


class Experiment(Component):
    """One training run: a task, its data, the mesh it runs on and its loop.

    Attributes:
        task: the model, its learner, and what training and evaluation compute.
        train_input: training batches.
        eval_inputs: evaluation sets by name; their metrics are called `<name>/<metric>`.
        decode_inputs: sets of prompts, which the task's decoder continues; their metrics are
            called `decode_<name>/<metric>`, see `trainer.loop.decode_loop`.
        mesh: how devices are arranged.
        train: steps, intervals, checkpoints, seed.
        smoke: overrides, path to value, that shrink the experiment for `--smoke`.
    """

    task: Task
    train_input: Input
    eval_inputs: dict[str, Input] = {}
    decode_inputs: dict[str, Input] = {}
    mesh: Mesh = Mesh()
    train: TrainLoop = TrainLoop()
    smoke: dict[str, Any] = {}

    def check(self) -> None:
        if not self.train_input.is_training:
            raise ValueError('train_input.is_training must be true')
        for field in ('eval_inputs', 'decode_inputs'):
            for name, data in self.sym_getattr(field).items():
                self._check_set(field, name, data)

    def _check_set(self, field: str, name: str, data: Input) -> None:
        if (
            name in ('train', EVAL_TRAIN)
            or name.startswith('decode_')
            or '/' in name
            or ':' in name
        ):
            raise ValueError(
                f"{field}: {name!r} is no name for a set: 'train', {EVAL_TRAIN!r}, what begins "
                "with 'decode_' and names with '/' or ':' would be confused with other metrics"
            )
        if not re.fullmatch(r'[A-Za-z0-9_-]+', name):
            raise ValueError(
                f'{field}: {name!r} is no name for a set: only letters, digits, _ and - can stand '
                'in one'
            )
        if data.is_training:
            raise ValueError(f'{field}.{name}.is_training must be false')
