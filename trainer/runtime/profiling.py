import re
from typing import Any

import jax
from absl import logging
from etils import epath

from trainer.symbolic.errors import UserError

_FLAG = '--profile_steps'


class Profiler:
    """Profiles a window of steps, into the `plugins` directory of a run.

    Read it with `tensorboard --logdir=<job_log_dir>`. A run that resumes within the window starts
    the profile there.
    """

    def __init__(self, first: int = 1, last: int = 0) -> None:
        """Prepares to profile the steps from `first` to `last`, both included; none by default."""
        self.first, self._last = first, last
        self._is_on = False
        self._step: Any = None  # Annotates the profile with the step.

    @classmethod
    def parse(cls, window: str) -> 'Profiler':
        """Parses the value of `--profile_steps=a:b`.

        Raises:
            UserError: it is not a window.

        Example:
            >>> Profiler.parse('10:12').covers(12)
            True
        """
        found = re.fullmatch(r'(\d+):(\d+)', window)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UserError(
                f'{_FLAG}={window}: expected the first and the last step, such as 10:12; the '
                'first step of a run is 1, and compiles'
            )
        return cls(int(found[1]), int(found[2]))

    def covers(self, step: int) -> bool:
        """True if a step is in the window."""
        return self.first <= step <= self._last

    def before(self, steps: range, job_log_dir: epath.Path) -> None:
        """Starts the profile at the first steps that are in the window."""
        if any(map(self.covers, steps)) and not self._is_on:
            jax.profiler.start_trace(str(job_log_dir))
            self._is_on = True
        if self._is_on:
            self._step = jax.profiler.StepTraceAnnotation('train', step_num=steps[0])
            self._step.__enter__()

    def after(self, steps: range, results: Any) -> None:
        """Ends the profile after the last step of the window."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if self._is_on and steps[-1] >= self._last:
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Ends the profile."""
        if self._is_on:
            self._is_on = False
            jax.profiler.stop_trace()
            logging.info('Profiled up to here; see it with tensorboard')
