"""`python -m paxtune.scale`."""

import json
import re
import shlex
from pathlib import Path

import pytest

from paxtune import train
from paxtune.__main__ import COMMANDS
from paxtune.scale.__main__ import main
from trainer.symbolic.errors import UserError

PROXY = ['proxy', '--exp=lm.StdlibTunable', '--width=32']


@pytest.mark.slow
def test_coordinates_print_exponents_and_draw_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / 'coordinates.html'
    flags = ['--exp=tests.factories.tiny.experiment', '--widths=8,16', '--num_steps=1']
    assert main(['coordinates', *flags, f'--out={page}']) == 0
    assert re.search(r'^without +logits +1 ', capsys.readouterr().out, re.MULTILINE)
    text = page.read_text()
    assert 'residual stream' in text and not re.search(r'<script[^>]+src=', text)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['coordinates', '--exp=lm.StdlibTunable', '--widths=8,16'], 'decisions are left open'),
        (
            ['coordinates', '--exp=lm.C4Small', '--widths=96,192', '--out=x.png'],
            r'--out=x\.png: a figure is FILE\.html',
        ),
        (
            ['coordinates', '--exp=vision.MnistExperiment', '--widths=8,16'],
            'It is for TransformerLm',
        ),
        (['proxy', '--exp=lm.StdlibTunable', '--width=64'], 'a proxy is narrower than the'),
        (['proxy', '--exp=lm.C4Small', '--width=96', '--dry_run'], '--dry_run is a flag of'),
        (
            [*PROXY, '--set', 'search.warm_start=parent'],
            'search.warm_start: the model of the full width begins with new weights',
        ),
        (
            [*PROXY, '--set', "sub_experiments={'a': {}, 'b': {}}"],
            'sub_experiments: a proxy is one model',
        ),
        (
            [*PROXY, '--set', 'task.learner.optimizer=SGD()'],
            'width_scaling has the rules of Adam: it needs AdamW, Lion or Muon, not SGD',
        ),
    ],
)
def test_bad_input_is_one_message(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(flags)


@pytest.mark.parametrize('widths', ['64', '0,1', 'a,b'])
def test_widths_that_are_no_list_of_numbers_are_refused(
    widths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(['coordinates', '--exp=lm.C4Small', f'--widths={widths}'])
    assert caught.value.code == 2 and '--widths' in capsys.readouterr().err
    assert 'scale' in COMMANDS


@pytest.mark.slow
def test_proxy_searches_a_narrow_model_and_its_command_trains_the_wide_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ['--exp=lm.StdlibTunable', '--smoke', '--width=8', '--num_trials=2']
    assert main(['proxy', *flags, '--job_log_dir=proxy']) == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if 'width_scaling' in line]
    words = shlex.split(line)
    assert words[:3] == ['python', '-m', 'paxtune.train']
    assert train.main(words[3:]) == 0
    experiment = json.loads((tmp_path / 'proxy/width-16/experiment.json').read_text())
    learner = experiment['task']['learner']
    assert experiment['task']['model']['embedding']['dims'] == 16
    assert learner['width_scaling']['base']['task.model.embedding.dims'] == 8
