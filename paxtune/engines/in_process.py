"""Trials in this process, one after another."""

import dataclasses
from collections.abc import Callable, Sequence

from paxtune.engines.base import Engine
from paxtune.running.callbacks import Callback
from paxtune.running.runners import Runner
from paxtune.running.tuner import Tuner
from paxtune.study.study import Study


@dataclasses.dataclass(frozen=True)
class InProcess(Engine):
    """Runs the trials in this process, one after another."""

    def run(
        self,
        study: Study,
        runner: Runner,
        callbacks: Sequence[Callback],
        should_interrupt: Callable[[], bool],
    ) -> None:
        Tuner(study, runner, callbacks, should_interrupt).run()
