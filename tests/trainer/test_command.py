import sys

import pytest

from trainer import command
from trainer.errors import UserError


def test_given_are_the_flags_of_the_process_unless_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, 'argv', ['/lib/trainer/main.py', '--exp=lm.C4Small'])
    assert command.given(None) == ['--exp=lm.C4Small']
    assert command.given(('--smoke',)) == ['--smoke']
    assert command.given([]) == []


@pytest.mark.parametrize(
    ('error', 'code', 'message'),
    [
        (KeyboardInterrupt(), 130, 'Interrupted.\n'),
        (UserError('no data'), 2, 'error: no data\n'),
    ],
)
def test_a_command_exits_with_one_line(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(argv: object) -> int:
        raise error

    with pytest.raises(SystemExit) as exited:
        command.run_command(main)
    assert exited.value.code == code
    assert capsys.readouterr().err == message


def test_a_command_exits_with_its_code() -> None:
    with pytest.raises(SystemExit) as exited:
        command.run_command(lambda argv: 3)
    assert exited.value.code == 3
