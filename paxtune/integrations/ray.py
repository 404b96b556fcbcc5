"""Experiments as trainables of Ray Tune, for its own schedulers.

from ray import tune
from ray.tune.schedulers import ASHAScheduler

tuner = tune.Tuner(
    tune.with_resources(trainable(Tiny()), {'cpu': 2}),
    param_space={'task.learner.learning_rate': tune.loguniform(1e-4, 1e-1)},
    tune_config=tune.TuneConfig(
        metric='eval/log_pplx', mode='min', num_samples=16, scheduler=ASHAScheduler()
    ),
)
tuner.fit()
"""

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paxtune.config.search import Search
from paxtune.experiment import Tunable, as_tunable
from paxtune.running.supervisor import modules_of
from paxtune.running.trial_spec import PreparedTrial, TrialSpec
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study.trial_costs import CostEstimate
from paxtune.study.trial_experiments import parts_of
from trainer.checkpoints import experiment_record
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.handover import take_over
from trainer.runtime import compilation_cache
from trainer.symbolic import extras
from trainer.symbolic.overrides import replaced
from trainer.symbolic.serialization import from_json_text, to_json_text

if TYPE_CHECKING:
    from trainer.experiment import Experiment

_LOOK_SECONDS, _SAVE_SECONDS = 0.02, 600.0


def trainable(experiment: 'Experiment') -> Callable[[Mapping[str, Any]], None]:
    """Makes an experiment a trainable of Ray Tune.

    The trainable takes values by path: of decisions, as `--decisions` does, and of other fields.
    Inactive decisions are ignored. It reports each
    measurement: its metrics, its `step` and the newest checkpoint, from which Ray Tune resumes a
    trial, or begins another one with other numbers.

    Args:
        experiment: its classes must be in modules that the nodes can import.

    Raises:
        UserError: the experiment cannot be searched, or is defined in the script that was started.

    Example:
        >>> from search_spaces.tunable_lm import Tiny
        >>> train = trainable(Tiny())
        >>> train({'task.learner.learning_rate': 0.01})
        Traceback (most recent call last):
        ...
        paxtune.search_space.space.MissingDecisionsError: These decisions are missing: ...
    """
    tunable = as_tunable(experiment, Search(None))
    Space(tunable)
    text, modules = to_json_text(tunable), modules_of(tunable)

    def train(config: Mapping[str, Any]) -> None:
        _train(text, modules, config)

    return train


def _train(text: str, modules: Sequence[str], config: Mapping[str, Any]) -> None:
    for module in modules:
        importlib.import_module(module)
    tunable: Tunable = from_json_text(text, Tunable, 'the experiment')
    known = set(Space(tunable).paths)
    others = {path: value for path, value in config.items() if path not in known}
    space = Space(replaced(tunable, others, 'config'))
    decisions = _decisions(space, {path: config[path] for path in config if path in known})

    with extras.needed('ray', 'Ray Tune'):
        from ray import tune

    compilation_cache.enable()
    # Another run of the same trial begins with the checkpoint that Ray Tune chooses, and no other.
    directory = tempfile.mkdtemp(prefix='run-', dir=os.getcwd())
    parts = parts_of(space, decisions)
    restored = tune.get_checkpoint()
    with tempfile.TemporaryDirectory() as scratch:
        spec = TrialSpec(1, decisions, directory)
        if restored is not None:
            spec = _continued(spec, restored.to_directory(scratch), parts)
        prepared = PreparedTrial(spec, parts, CostEstimate({}, None))
        for report in prepared.train(lambda: False):
            if report.step == report.resumed_from and not report.is_last:
                continue  # Ray Tune has the report of the step from which a run resumes.
            metrics = {**report.metrics, 'step': report.step}
            _wait_for(report.checkpoint)
            with tempfile.TemporaryDirectory() as kept:
                found = [take_over([Path(directory) / part], Path(kept) / part) for part in parts]
                # Ray Tune copies it before it returns.
                checkpoint = tune.Checkpoint.from_directory(kept) if any(found) else None
                tune.report(metrics, checkpoint=checkpoint)


def _wait_for(checkpoint: str | None) -> None:
    """Waits until a checkpoint is complete, or for so long that its save must have failed."""
    last = time.monotonic() + _SAVE_SECONDS
    while checkpoint is not None and newest_checkpoint(checkpoint) is None:
        if time.monotonic() > last:
            return  # The next step raises the error.
        time.sleep(_LOOK_SECONDS)


def _decisions(space: Space, given: Mapping[str, Any]) -> Decisions:
    decisions = space.adopt(given.__getitem__)
    return space.parse(given) if decisions is None else decisions


def _continued(spec: TrialSpec, restored: str, parts: Mapping[str, Tunable]) -> TrialSpec:
    """Returns the trial that begins with a checkpoint of its own, or of another trial."""
    import dataclasses

    is_own = not any(
        experiment_record.changes(Path(restored) / name, experiment_record.recorded(part))
        for name, part in parts.items()
    )
    newest = newest_checkpoint(Path(restored) / 'checkpoints')
    if is_own or newest is None:
        return dataclasses.replace(spec, earlier=[restored])
    return dataclasses.replace(spec, parent_checkpoint=([restored], int(newest.name)))
