"""The guides in docs/extending/ run: their modules, their commands and their links."""

import re
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, commands_of, links, pages_of, parsed
from tests.servers.processes import on_devices
from trainer import command
from trainer.experiment import Experiment
from trainer.loop.train_loop import run
from trainer.symbolic import registry

FOLDER = ROOT / 'docs' / 'extending'
GUIDES = [path for path in pages_of(__file__) if path.name != 'README.md']
COMMANDS = [(path, words) for path in GUIDES for words in commands_of(path.read_text())]

each_guide = pytest.mark.parametrize('guide', GUIDES, ids=lambda path: path.stem)


def write_module(guide: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes the one module of a guide, and returns its name."""
    text = guide.read_text()
    (code,) = [block.text for block in blocks(text) if block.language == 'python']
    (name,) = re.findall(r'This is a file `(my_\w+)\.py`', text)
    (directory / f'{name}.py').write_text(code)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return str(name)


@pytest.mark.parametrize(
    ('guide', 'words'), COMMANDS, ids=[' '.join(words) for _, words in COMMANDS]
)
def test_commands_take_their_flags(
    guide: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(guide, tmp_path, monkeypatch)
    registry.find(parsed(words, monkeypatch).exp, Experiment)


@pytest.mark.slow
@each_guide
def test_commands_run(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_module(guide, tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    own = [words for words in commands_of(guide.read_text()) if f'--exp={name}.' in ' '.join(words)]
    assert own
    for _, _, module, *flags in own:
        assert command.module_of(module).main(flags) == 0


_ON_DEVICES = """
import sys

sys.path.insert(0, {directory!r})
import my_axis
import numpy as np
from paxtune.search import main
from trainer.inspect import layout
from trainer.loop.train_loop import run

def trained(name, steps, groups):
    made = my_axis.Mine().rebind({{'mesh.axes.group': groups, 'train.num_train_steps': steps}})
    *_, last = run(made, {directory!r} + '/' + name)
    return last.metrics['eval/loss']

whole = trained('whole', 20, 4)
trained('parts', 10, 4)
assert trained('parts', 20, 4) == whole
np.testing.assert_allclose(trained('other', 20, 1), whole, rtol=1e-4)
made = my_axis.Mine().rebind({{'mesh.axes.group': 4}})
shards = {{each.path: each.shard_shape for each in layout(made, 8).parameters}}
assert shards['stack.layers_1.up'] == (2, 4, 16), shards
flags = ['--exp=my_axis.Mine', '--job_log_dir=' + {directory!r} + '/search', '--quiet']
assert main([*flags, '--tune', 'mesh.axes.group=oneof([2, 8])']) == 0
"""


@pytest.mark.slow
def test_an_own_mesh_axis_trains_resumes_decodes_and_is_searched_on_eight_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(FOLDER / 'mesh-axes.md', tmp_path, monkeypatch)
    on_devices(_ON_DEVICES.format(directory=str(tmp_path)))
    texts = [
        (tmp_path / name / 'decode_out' / 'written' / 'step_000000020.jsonl').read_text()
        for name in ('whole', 'parts')
    ]
    assert texts[0] == texts[1]
    assert (tmp_path / 'search' / 'study.db').exists()


@pytest.mark.slow
def test_a_replaced_train_step_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(FOLDER / 'train-steps.md', tmp_path, monkeypatch)
    made = registry.find('my_gan.Mine', Experiment).rebind(
        {'train.evaluation.every': 10, 'train.checkpoints.every': 10}
    )

    def trained(name: str, steps: int) -> dict[str, float | None]:
        made.rebind({'train.num_train_steps': steps})
        *_, last = run(made, tmp_path / name)
        return {
            name: last.metrics[name] for name in ('train/loss', 'train/critic_loss', 'test/loss')
        }

    whole = trained('whole', 20)
    trained('parts', 10)
    assert trained('parts', 20) == whole


def test_the_index_lists_every_guide() -> None:
    assert {guide.name for guide in GUIDES} <= {*links((FOLDER / 'README.md').read_text())}
