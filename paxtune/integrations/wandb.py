"""Trials as runs of Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging

from paxtune.integrations.tracker import Tracker
from paxtune.study.record import Status
from trainer.symbolic import extras

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_INIT_SECONDS, _FINISH_SECONDS = 30.0, 60.0


class WandbCallback(Tracker):
    """Shows a study in Weights & Biases: a group with a run for each trial.

    Decisions are the configuration, measurements are logged by step. The summary has the state of a
    trial, its reason and its reward. A trial that resumes continues its run, whose id follows from
    the study and the trial. An error of Weights & Biases is a warning, and ends no search.

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
        with extras.needed('wandb', 'WandbCallback'):
            import wandb
        self._init: dict[str, Any] = {'project': project, **init}
        self._wandb: Any = wandb
        self._study, self._group = '', dict[str, str]()

    def _open(self, study: 'Study') -> None:
        record, directory = study.record, study.directory
        self._study = record.uuid[:12]
        known = {'dir': str(directory)} if isinstance(directory, Path) else {}
        name = record.exp or (record.experiment if directory is None else directory.name)
        self._group = {'group': f'{name}-{self._study}', **known}

    def _begin(self, study: 'Study', trial: 'Trial') -> Any:
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
                **self._group,
                **self._init,
            }
        )
        logging.info('trial %d: %s', trial.id, run.url or run.dir)
        return run

    def _log(self, run: Any, step: int, values: Mapping[str, float]) -> None:
        run.log(dict(values), step=step)

    def _show(self, run: Any, trial: 'Trial', facts: Mapping[str, Any]) -> None:
        run.summary.update(facts)

    def _close(self, run: Any, trial: 'Trial') -> None:
        run.finish(exit_code=int(trial.status is Status.INFEASIBLE))
