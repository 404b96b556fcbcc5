"""Changes of the shown study: by commands, and notes."""

import contextlib
import json
import re
from collections.abc import Iterator

from paxtune.page.commands import StudyCommands
from paxtune.page.live import LiveStudy
from paxtune.reports.study_edits import stop
from paxtune.service.study_location import readable
from paxtune.study import notes
from trainer.symbolic.errors import UserError

_ASSIGNMENT = re.compile(r'[^-\s=][^=]*=.*', re.DOTALL)
_RESULT = re.compile(rf'{_ASSIGNMENT.pattern}|-?[0-9.]+([eE][-+]?[0-9]+)?', re.DOTALL)


class Actions:
    """Changes of a study from its page. All raise UserError where one is not possible.

    A search that works in the directory of a study excludes some of these: the message says so.
    """

    def __init__(self, live: LiveStudy, commands: StudyCommands) -> None:
        self._live, self._commands = live, commands

    def stop(self, trial: int) -> str:
        """Requests that the search stops a trial."""
        with self._changing():
            return stop(self._live.where, [trial]).remark

    def pause(self) -> str:
        """Requests that the search pauses."""
        with self._changing():
            return stop(self._live.where, []).remark

    def note(self, trial: int | None, text: str) -> str:
        """Keeps a note on a trial, or on the study; an empty one removes it."""
        where = self._live.where
        with self._changing(), contextlib.closing(where.store(can_write=True)) as store:
            if trial is None:
                notes.write_study_note(store, text)
            else:
                notes.write_note(store, trial, text)
        return 'The note is kept.' if text.strip() else 'The note is removed.'

    def retry(self, trial: int) -> str:
        """Adds a trial that repeats another one."""
        with self._changing():
            return self._commands.run('retry', str(trial))

    def delete(self, trial: int) -> str:
        """Deletes a trial with its files."""
        with self._changing():
            return self._commands.run('delete', str(trial), '--yes')

    def tell(self, trial: int, metrics: str) -> str:
        """Ends a trial that waits for its result.

        Args:
            trial: its number.
            metrics: lines of METRIC=VALUE, or the number of the reward.
        """
        expected = 'METRIC=VALUE, such as loss=0.5, or the number of the reward'
        return self._reported(trial, *_lines(metrics, _RESULT, expected))

    def tell_infeasible(self, trial: int, reason: str) -> str:
        """Ends a trial that waits for its result: it has none, for a reason."""
        if not reason.strip():
            raise UserError('expected the reason why the trial has no result')
        return self._reported(trial, f'--infeasible={reason.strip()}')

    def add(self, decisions: str) -> str:
        """Adds a trial.

        Args:
            decisions: lines of PATH=VALUE, one for each decision.
        """
        expected = 'PATH=VALUE, such as learning_rate=1e-3'
        given = _lines(decisions, _ASSIGNMENT, expected)
        with self._changing():
            return self._commands.run('add', *given)

    def _reported(self, trial: int, *arguments: str) -> str:
        with self._changing():
            found = json.loads(self._commands.run('tell', str(trial), *arguments))
        rewards = [f'{name} = {value:.6g}' for name, value in found['rewards'].items()]
        return f'Trial {trial} is {found["state"]}. {", ".join(rewards)}'.rstrip()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with readable(self._live.where):
            yield
        self._live.forget()


def _lines(text: str, pattern: re.Pattern[str], expected: str) -> list[str]:
    """Reads lines that become arguments of a command: none may be a flag. Raises UserError."""
    given = [line.strip() for line in text.splitlines() if line.strip()]
    for each in given:
        if not pattern.fullmatch(each):
            raise UserError(f'{each}: expected {expected}')
    if not given:
        raise UserError(f'expected lines of {expected}')
    return given
