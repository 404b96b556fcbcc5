"""Trials as runs of Weights & Biases."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging

from paxtune.integrations.tracker import Tracked, Tracker
from paxtune.study.record import Status
from trainer.runtime.directory import write_json
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_INIT_SECONDS, _FINISH_SECONDS = 30.0, 60.0

_MARKER = 'paxtune.json'
"""A file in the local directory of a finished run: the state of its trial, and the last step."""


class WandbCallback(Tracker):
    """Shows a study in Weights & Biases: a group with a run for each trial.

    Decisions are the configuration, measurements are logged by step. The summary has the state of a
    trial, its reason and its reward. A trial that resumes continues its run, whose id follows from
    the study and the trial. An error of Weights & Biases is a warning, and ends no search: what was
    missed is sent later.

    Example:
        >>> WandbCallback('language-models', mode='offline')
        WandbCallback()
    """

    TOOL = 'Weights & Biases'

    def __init__(self, project: str = 'paxtune', **init: Any) -> None:
        """Prepares a callback; Weights & Biases is contacted when the first trial starts.

        Args:
            project: the name of the project.
            **init: further arguments of `wandb.init`, such as `entity`, `mode` and `tags`. `dir` is
                the directory of the study by default.

        Raises:
            UserError: wandb is not installed.
        """
        super().__init__()
        try:
            import wandb
        except ImportError as error:
            raise UserError("WandbCallback needs wandb: pip install 'paxtune[wandb]'") from error
        self._init: dict[str, Any] = {'project': project, **init}
        self._wandb: Any = wandb
        self._study = ''

    def _open(self, study: 'Study') -> None:
        record, directory = study.record, study.directory
        self._study = record.uuid[:12]
        if isinstance(directory, Path):
            self._init.setdefault('dir', str(directory))
        name = record.exp or (record.experiment if directory is None else directory.name)
        self._init.setdefault('group', f'{name}-{self._study}')
        root = Path(self._init.get('dir') or os.environ.get('WANDB_DIR', '.')) / 'wandb'
        markers = sorted(
            root.glob(f'*run-*-{self._study}-*/{_MARKER}'),
            key=lambda each: each.parent.name.partition('run-')[2],  # The time, and then the id.
        )
        finished = {
            int(each.parent.name.rpartition('-')[2]): Tracked(None, **json.loads(each.read_text()))
            for each in markers
        }
        self._tracked = {**finished, **self._tracked}

    def _begin(self, study: 'Study', trial: 'Trial') -> Tracked:
        settings = self._wandb.Settings(
            console='off',  # Else each run prints several lines.
            silent=True,
            init_timeout=_INIT_SECONDS,
            # By default, a run without a network ends once it has one again.
            finish_timeout=_FINISH_SECONDS,
            finish_timeout_raises=True,
        )
        run = self._wandb.init(
            **{
                'id': f'{self._study}-{trial.id}',
                'name': f'trial {trial.id}',
                'job_type': 'trial',
                'config': trial.decisions,
                'resume': 'allow',
                'reinit': 'create_new',  # Several trials may run at a time.
                'settings': settings,
                **self._init,
            }
        )
        logging.info('trial %d: %s', trial.id, run.url or run.dir)
        return Tracked(run, run.starting_step - 1 if run.resumed else -1)

    def _log(self, tracked: Tracked, step: int, values: Mapping[str, float]) -> None:
        tracked.run.log(dict(values), step=step)

    def _show(self, tracked: Tracked, trial: 'Trial', facts: Mapping[str, Any]) -> None:
        tracked.run.summary.update(facts)
        if facts['state'] == Status.ACTIVE:
            return
        marker = Path(tracked.run.dir).parent / _MARKER
        self._finish(tracked, int(trial.status is Status.INFEASIBLE))
        if marker.parent.exists():
            write_json(marker, {'step': tracked.step, 'state': facts['state']})

    def _end(self, study: 'Study', is_done: bool) -> None:
        for tracked in self._tracked.values():
            if tracked.run is not None:  # Its trial runs elsewhere, or was left.
                self._finish(tracked, 0)

    def _finish(self, tracked: Tracked, exit_code: int) -> None:
        run, tracked.run = tracked.run, None
        run.finish(exit_code=exit_code)
