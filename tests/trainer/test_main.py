"""`python -m trainer.main`: its modes."""

from pathlib import Path

import pytest

from trainer import main

_EXP = 'tests.trainer.loop.test_decode_loop.decoding'


@pytest.mark.pax('`--mode`: train', '`--mode`: eval')
def test_each_mode_does_its_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*flags: str) -> dict[int, str]:
        assert main.main([f'--exp={_EXP}', f'--job_log_dir={tmp_path}', *flags]) == 0
        lines = [each.split() for each in capsys.readouterr().out.splitlines()]
        return {int(words[1][:-1]): ' '.join(words[2:]) for words in lines if words[0] == 'step'}

    def loss(text: str) -> str:
        return next(word for word in text.split() if word.startswith('eval/loss='))

    trained = printed('--mode=train')
    assert list(trained) == [2, 4, 6]
    for flags, step in (((), 6), (('--checkpoint_step=4',), 4)):
        evaluated = printed('--mode=eval_once', *flags)
        assert list(evaluated) == [step]
        assert loss(evaluated[step]) == loss(trained[step])
    followed = printed('--mode=eval')
    assert {step: loss(text) for step, text in followed.items()} == {
        step: loss(trained[step]) for step in (4, 6)
    }
