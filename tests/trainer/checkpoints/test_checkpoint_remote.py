"""Training whose directory is in Google Cloud Storage."""

import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from tests.servers.processes import command, passed
from tests.trainer.loop.test_train_loop_kills import losses, state_of, train
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.main import main
from trainer.symbolic.errors import UserError

_EXPERIMENT = ['--exp=tests.factories.real_input_experiments.Text']


@pytest.mark.slow
@pytest.mark.sentinel
def test_it_is_killed_and_interrupted_and_ends_as_on_a_disk(
    store: epath.Path, tmp_path: Path
) -> None:
    passed(train('Text', tmp_path))
    # Inside the second save, before its last file.
    killed = train('Text', store, kill='save:4')
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (store / 'checkpoints/6/_CHECKPOINT_METADATA').exists()
    assert newest_checkpoint(store / 'checkpoints') == store / 'checkpoints/3'
    # What a checkpoint relies on is there before it.
    told, wanted = ([each for each in losses(where) if each[0] <= 6] for where in (store, tmp_path))
    assert told == wanted
    stopped = train('Text', store, kill='int:5')
    assert stopped.returncode == 130, stopped.stderr
    assert 'Stopped at step 8. To resume:' in stopped.stdout
    assert 'resumed from step 8\n' in passed(train('Text', store))
    jax.tree.map(np.testing.assert_array_equal, state_of('Text', store), state_of('Text', tmp_path))
    assert losses(store) == losses(tmp_path)
    assert [path.name[:19] for path in (store / 'summaries').iterdir()] == [
        'events.out.tfevents'
    ] * 3
    evaluated = command('trainer.main', *_EXPERIMENT, f'--job_log_dir={store}', '--mode=eval_once')
    assert f'eval/loss={losses(store)[-1][1]:.6g}' in passed(evaluated)


def test_a_bucket_that_is_not_there_is_refused(store: epath.Path) -> None:
    with pytest.raises(UserError, match='--job_log_dir=gs://none/here: cannot write there'):
        main([*_EXPERIMENT, '--job_log_dir=gs://none/here'])
