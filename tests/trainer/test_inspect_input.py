"""`python -m trainer.inspect_input` prints an input, and finds its errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.factories.c4_data import make_json_shards
from tests.factories.tiny import CountingInput, experiment
from trainer import inspect_input
from trainer.experiment import Experiment
from trainer.inputs import DigitsInput, JsonShardsInput, StdlibInput
from trainer.inputs.base import Batch, EndOfData
from trainer.loop.train_loop import run
from trainer.program.input_checks import check_hosts
from trainer.symbolic.errors import UserError


class Shared(CountingInput):
    """Each host reads rows of its own, or all the same."""

    overlapping: float = 0.0

    def get_next(self) -> Batch:
        batch = super().get_next()
        own = (self._batch * self.num_hosts + self.infeed_host_index) * self.batch_size
        first = own if self.overlapping == 0 else self._batch * self.batch_size
        rows = first + np.arange(self.batch_size)
        mine = own + np.arange(self.batch_size)
        keep = np.arange(self.batch_size) < self.overlapping * self.batch_size
        numbers = np.where(keep, rows, mine)
        ids = np.stack([numbers >> 5, numbers & 31], axis=1) % 32
        batch['ids'] = np.repeat(ids, 4, axis=1).astype(np.int32)
        batch['labels'] = np.zeros_like(batch['ids'])
        batch['weights'] = np.ones_like(batch['weights'])
        return batch


class Uneven(Shared):
    """The second host has one batch less."""

    def get_next(self) -> Batch:
        if self.infeed_host_index == 1 and self._batch == 2:
            raise EndOfData
        return super().get_next()


def Stdlib() -> Experiment:
    data = {'batch_size': 4, 'sequence_length': 16}
    return experiment(
        train_input=StdlibInput(split='train', is_training=True, **data),
        eval_inputs={'eval': StdlibInput(split='eval', max_bytes=200, **data)},
        task__model__embedding__vocab_size=256,
    )


def Packed() -> Experiment:
    made = Stdlib()
    train = JsonShardsInput(
        batch_size=2, sequence_length=96, packing=True, is_training=True, paths=['/nowhere']
    )
    made.rebind({'train_input': train, 'task.model.embedding.vocab_size': 259})
    return made


def Digits() -> Experiment:
    return experiment(
        train_input=DigitsInput(batch_size=8, split='train', is_training=True),
        eval_inputs={'test': DigitsInput(batch_size=64, split='test')},
    )


def Overlapping() -> Experiment:
    return experiment(
        train_input=Shared(batch_size=8, is_training=True),
        eval_inputs={'eval': Shared(batch_size=8, overlapping=1.0)},
    )


def shown(capsys: pytest.CaptureFixture[str], name: str, *flags: str) -> str:
    assert inspect_input.main([f'--exp={__name__}.{name}', *flags]) == 0
    return capsys.readouterr().out


def test_batches_are_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, 'Stdlib', '--num_batches=9', '--num_rows=1')
    assert 'train_input: StdlibInput, 4 examples per batch\n  ids: int32[4, 16]\n' in out
    first = StdlibInput(batch_size=4, sequence_length=16, split='eval', max_bytes=200)
    labels = first.ids_to_strings(first.get_next()['labels'])
    assert f'    0: labels {labels[0]!r}\n' in out
    assert 'batch 4: 12.5 % of its 64 positions have weight, 3 of 4 examples are padding' not in out
    assert '  the set ends after 4 batches\n' in out
    assert 'train_input: 2 to 4 hosts read distinct examples (in 4 batches of each)\n' in out
    assert out.endswith('All inputs have one vocabulary: plain bytes\n')


@pytest.mark.slow
def test_batches_are_shown_from_where_a_checkpoint_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list(run(Stdlib().rebind({'train.num_train_steps': 2}), tmp_path))
    checkpoints = f'--from_checkpoint={tmp_path / "checkpoints"}'
    flags = ['--num_batches=1', '--num_host_batches=0', '--input=train_input']
    out = shown(capsys, 'Stdlib', *flags, checkpoints, '--skip_batches=1')
    assert 'batch 4: ' in out
    assert out == shown(capsys, 'Stdlib', *flags, '--skip_batches=3')
    assert out != shown(capsys, 'Stdlib', *flags, '--skip_batches=2').replace('batch 3', 'batch 4')
    for name, given, message in [
        ('Stdlib', [checkpoints], 'add --input=train_input'),
        ('Stdlib', [*flags, '--from_checkpoint=/nowhere'], 'checkpoint=/nowhere: there is no'),
        ('Digits', [*flags, checkpoints], 'checkpoints: the data changed'),
        ('Stdlib', ['--skip_batches=-1'], '--skip_batches must be at least 0'),
    ]:
        with pytest.raises(UserError, match=message):
            inspect_input.main([f'--exp={__name__}.{name}', *given])


def test_packed_rows_are_shown_by_document(tmp_path: Any, capsys: Any) -> None:
    shards = make_json_shards(tmp_path)
    out = shown(
        capsys,
        'Packed',
        '--set',
        f'train_input.paths=["{shards}/c4-train.*"]',
        '--input=train_input',
        '--num_batches=1',
        '--num_rows=1',
        '--num_host_batches=0',
        '--set',
        'eval_inputs={}',
    )
    assert 'segment_ids: int32[2, 96]' in out
    assert ' documents per row' in out
    assert out.count("    0: labels '") >= 1
    assert 'hosts' not in out


def test_images_are_shown_as_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, 'Digits', '--num_batches=6', '--num_rows=1')
    assert '  image: float32[8, 8, 8, 1]\n' in out
    assert '0: image 0 to 1 in [8, 8, 1], label ' in out
    assert 'batch 6: 62.5 % of its 64 examples have weight, 24 of 64 examples are padding' in out
    assert 'There are no vocabularies.' in out


@pytest.mark.pax('num_infeed_hosts')
def test_hosts_that_read_the_same_are_named() -> None:
    with pytest.raises(
        UserError, match=r'^eval_inputs\.eval: of 2 hosts, hosts 0 and 1 read the same examples'
    ):
        inspect_input.main([f'--exp={__name__}.Overlapping', '--num_batches=1'])
    inspect_input.main([f'--exp={__name__}.Overlapping', '--input=eval_inputs.eval',
                        '--set', 'eval_inputs.eval.overlapping=0.0'])  # fmt: skip


def test_a_small_overlap_is_found_and_none_is_not() -> None:
    data = {'batch_size': 8, 'is_training': True}
    with pytest.raises(UserError, match='read the same examples'):
        check_hosts('train_input', Shared(overlapping=0.25, **data), 4)
    assert 'distinct' in check_hosts('train_input', Shared(**data), 4)


def test_examples_that_the_data_hold_twice_are_no_overlap() -> None:
    class Few(Shared):
        def get_next(self) -> Batch:
            batch = super().get_next()
            batch['ids'] %= 2
            return batch

    assert 'distinct' in check_hosts('train_input', Few(batch_size=8, is_training=True), 4)


def test_evaluations_that_do_not_end_together_are_named() -> None:
    with pytest.raises(UserError, match=r'^x: of 2 hosts some end after 2 batches and others'):
        check_hosts('x', Uneven(batch_size=8), 4)


@pytest.mark.pax('Tokenizers of all')
def test_other_vocabularies_are_named(tmp_path: Any) -> None:
    shards = make_json_shards(tmp_path)
    flags = ['--set', f'train_input.paths=["{shards}/c4-train.*"]', '--num_batches=1']
    with pytest.raises(
        UserError, match=r'^eval_inputs\.eval: its vocabulary \(plain bytes\) .* train_input \(byte'
    ):
        inspect_input.main([f'--exp={__name__}.Packed', '--num_host_batches=0', *flags])


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--num_batches=0'], '--num_batches must be at least 1: 0'),
        (['--num_rows=-1'], '--num_rows must be at least 0: -1'),
        (
            ['--input', 'eval_inputs.evl'],
            '--input=eval_inputs.evl: .*Did you mean eval_inputs.eval',
        ),
        (['--input', 'x'], '--input=x: .*There are train_input, eval_inputs.eval'),
        (['--set', 'train_input.is_training=false'], 'train_input.is_training must be true'),
        (['--set', 'eval_inputs.eval.eval_loop_num_batches=0'], r'^eval_inputs\.eval\.eval_loop'),
    ],
)
def test_bad_input_is_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        inspect_input.main([f'--exp={__name__}.Stdlib', *flags])


def test_an_input_must_be_concrete_and_a_model_need_not() -> None:
    from search_spaces import lm

    made = inspect_input.with_concrete_inputs(lm.StdlibTunable())
    assert made.train_input.batch_size == 32
    import pyglove as pg

    made.rebind({'train_input.batch_size': pg.oneof([1, 2])})
    with pytest.raises(UserError, match=r'^train_input is not concrete: batch_size. Set values'):
        inspect_input.with_concrete_inputs(made)
