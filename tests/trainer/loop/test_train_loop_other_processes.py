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


def trained(layout: Layout, directory: Path, interrupted: bool = False) -> list[Ended]:
    """A run on 8 devices, with the same examples in each step; `interrupted` after five steps."""
    return train(
        'Text',
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


@pytest.mark.pax('With another number')
@pytest.mark.slow
def test_other_processes_go_on_with_the_same_losses(tmp_path: Path) -> None:
    for layout, last in ((ONE, 5), (TWO, 10)):
        ended = trained(layout, tmp_path, interrupted=True)
        assert {each.code for each in ended} == {130}, ended
        assert metrics(tmp_path)[-1]['step'] == last
    assert 'resumed from step 10' in all_passed(trained(ONE, tmp_path))
    all_passed(trained(ONE, tmp_path / 'undisturbed'))
    got, wanted = metrics(tmp_path), metrics(tmp_path / 'undisturbed')
    assert [record['step'] for record in got] == [record['step'] for record in wanted]
    assert any('eval/loss' in record for record in wanted[-2:])
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
