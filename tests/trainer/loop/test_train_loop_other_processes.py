"""Runs that go on in more, or fewer, processes than those that began them."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.processes import Ended, all_passed
from tests.trainer.runtime.test_processes import metrics, train

_SIZES = ('train_input.batch_size', 'eval_inputs.eval.batch_size')


class Layout(NamedTuple):
    """A number of processes, and of simulated devices in each."""

    processes: int
    devices: int


TWO, ONE = Layout(2, 4), Layout(1, 8)


def trained(
    layout: Layout, directory: Path, name: str = 'Text', interrupted: bool = False
) -> list[Ended]:
    """A run on 8 devices, with the same examples in each step; `interrupted` after step 5."""
    return train(
        name,
        directory,
        '--set',
        'mesh.fsdp=2',  # The rest is `data`: both axes cross the processes.
        'eval_inputs.eval.reset_for_eval=false',
        'eval_inputs.eval.eval_loop_num_batches=3',
        *(f'{path}={16 // layout.processes}' for path in _SIZES),
        processes=layout.processes,
        devices=layout.devices,
        kill={layout.processes - 1: 'int:5'} if interrupted else {},
    )


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the run that one process does in one go."""
    directory = tmp_path_factory.mktemp('undisturbed')
    all_passed(trained(ONE, directory))
    return directory


@pytest.mark.pax('With another number')
@pytest.mark.slow
@pytest.mark.parametrize(('first', 'then'), [(TWO, ONE), (ONE, TWO)], ids=['fewer', 'more'])
def test_other_processes_go_on_with_the_same_losses(
    first: Layout, then: Layout, tmp_path: Path, undisturbed: Path
) -> None:
    ended = trained(first, tmp_path, interrupted=True)
    assert {each.code for each in ended} == {130}, ended
    assert [record['step'] for record in metrics(tmp_path)] == [*range(1, 5), 4, 5]
    assert 'resumed from step 5' in all_passed(trained(then, tmp_path))
    got, wanted = metrics(tmp_path), metrics(undisturbed)
    assert [record['step'] for record in got] == [record['step'] for record in wanted]
    assert any('eval/loss' in record for record in wanted[-2:])
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_data_with_positions_of_their_share_alone_are_refused(tmp_path: Path) -> None:
    trained(TWO, tmp_path, name='OwnPositions', interrupted=True)
    (alone,) = trained(ONE, tmp_path, name='OwnPositions')
    assert alone.code == 2, alone
    assert 'error: train_input: ' in alone.err
    assert '2 processes, each with its own shard of the data, wrote ' in alone.err
