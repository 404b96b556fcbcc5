"""`python -m paxtune.scale`."""

import json
import re
import shlex
from pathlib import Path

import pytest

from paxtune import train
from paxtune.__main__ import COMMANDS
from paxtune.scale import __main__ as scale
from tests.paxtune.scale.test_laws import SIZES, loss
from trainer.symbolic.errors import UserError

PROXY = ['proxy', '--exp=lm.StdlibTunable', '--width=32']


def table(path: Path, extra: str = '') -> str:
    lines = ['params,tokens,loss,batch_size', *(f'{n},{d},{loss(n, d)},' for n, d in SIZES)]
    path.write_text('\n'.join([*lines, extra]).strip() + '\n')
    return str(path)


def test_fit_prints_constants_and_draws_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / 'law.html'
    flags = ['fit', f'--csv={table(tmp_path / "runs.csv")}']
    assert scale.main([*flags, f'--out={page}']) == 0
    shown = capsys.readouterr().out
    assert re.search(r'^alpha +0\.34 ', shown, re.MULTILINE) and 'batch_size' not in shown
    text = page.read_text()
    assert '1e+06 parameters' in text and not re.search(r'<script[^>]+src=', text)
    assert scale.main([*flags, '--format=json']) == 0
    assert json.loads(capsys.readouterr().out)['loss']['values']['E'] == pytest.approx(1.7, 0.01)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['fit'], 'name directories of runs, or a table'),
        (['fit', 'a', '--csv=b'], 'name directories of runs, or a table'),
        (['fit', 'nowhere'], r'nowhere: no directory of a run: there is no experiment\.json'),
        (['fit', '--csv=nowhere.csv'], r'--csv=nowhere\.csv: .*No such file'),
        (['fit', '--csv=runs.csv', '--out=x.png'], r'--out=x\.png: a figure is FILE\.html'),
        (['fit', '--csv=bad.csv'], "bad.csv: row 17: loss must be a number, not 'low'"),
        (['fit', '--csv=other.csv'], "there is no column 'params'"),
        (['coordinates', '--exp=lm.StdlibTunable', '--widths=8,16'], 'decisions are left open'),
        (
            ['coordinates', '--exp=vision.MnistExperiment', '--widths=8,16'],
            'It is for TransformerLm',
        ),
        (['proxy', '--exp=lm.StdlibTunable', '--width=64'], 'a proxy is narrower than the'),
        (['proxy', '--exp=lm.C4Small', '--width=96', '--dry_run'], '--dry_run: it is of'),
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
            'width_scaling has the rules of Adam: it needs AdamW or Lion, not SGD',
        ),
        (['fit', 'a', '--exp=lm.Nothing'], 'Nothing'),
    ],
)
def test_bad_input_is_one_message(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / 'runs.csv')
    table(tmp_path / 'bad.csv', '1,2,low,')
    (tmp_path / 'other.csv').write_text('size,loss\n1,2\n')
    with pytest.raises(UserError, match=message):
        scale.main(flags)


@pytest.mark.parametrize('widths', ['64', '0,1', 'a,b'])
def test_widths_that_are_no_list_of_numbers_are_refused(
    widths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        scale.main(['coordinates', '--exp=lm.C4Small', f'--widths={widths}'])
    assert caught.value.code == 2 and '--widths' in capsys.readouterr().err
    assert 'scale' in COMMANDS


@pytest.mark.slow
def test_proxy_searches_a_narrow_model_and_its_command_trains_the_wide_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ['--exp=lm.StdlibTunable', '--smoke', '--width=8', '--num_trials=2']
    assert scale.main(['proxy', *flags, '--job_log_dir=proxy']) == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if 'width_scaling' in line]
    words = shlex.split(line)
    assert words[:3] == ['python', '-m', 'paxtune.train']
    assert train.main(words[3:]) == 0
    experiment = json.loads((tmp_path / 'proxy/width-16/experiment.json').read_text())
    learner = experiment['task']['learner']
    assert experiment['task']['model']['embedding']['dims'] == 16
    assert learner['width_scaling']['base']['task.model.embedding.dims'] == 8
    # The directory of a run is one of the points of a law; there are too few of them.
    with pytest.raises(UserError, match=r'a fit needs at least 6 runs .* there are 1 runs'):
        scale.main(['fit', 'proxy/width-16'])
    with pytest.raises(UserError, match='eval/lost was not measured; choose --metric of eval/acc'):
        scale.main(['fit', 'proxy/width-16', '--metric=eval/lost'])
