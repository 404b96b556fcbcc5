"""Processes that search in one directory, without a service: each locks a file while it lives."""

import contextlib

from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import Paused, Tuner, prepare_to_run
from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.recovery import recover
from paxtune.storage.study_file import DATABASE
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.simulation.machine import Machine
from tests.simulation.world import World
from trainer.symbolic.errors import UserError


class LocalMachine(Machine):
    """A process that a person starts again until the study is done. It has no workers."""

    def _drive(self) -> int:
        world = self._world
        try:
            with contextlib.closing(open_study(self.directory, self._value)) as study:
                runner = study.value.runner()
                Tuner(study, runner, (), lambda: self.driver.is_interrupted).run()
        except Paused as error:
            world.say(self.driver.name, 'pauses:', error)
            return 3
        except (StudyStoppedError, UserError) as error:
            world.say(self.driver.name, 'ends:', str(error).split('\n')[0])
            return 2
        self.is_done = True
        return 0


def check_recovery(world: World) -> None:
    """Checks that a study whose database is lost is rebuilt from the records of its trials."""
    directory = world.directory / 'study'
    with contextlib.closing(load_study(directory, read_only=False)) as study:
        prepare_to_run(study)  # As the next search does: a killed one has left a record behind.
        before = _ends(study)
    (directory / DATABASE).unlink()
    recover(directory)
    with contextlib.closing(load_study(directory)) as study:
        if (after := _ends(study)) != before:
            world.violate('recovery', f'{after} is {before} in the lost database')


def _ends(study: Study) -> list[tuple[object, ...]]:
    return [_end(trial) for trial in study.trials if trial.is_terminal]


def _end(trial: Trial) -> tuple[object, ...]:
    return trial.id, trial.status, trial.reward, trial.attempt, len(trial.measurements)
