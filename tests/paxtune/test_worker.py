from typing import Any

from paxtune.storage.vizier_store import TrialProto, note
from paxtune.study.trial_state import Loss, hand_out, lose
from paxtune.worker import Counted, Heartbeat


def test_a_trial_that_comes_further_with_each_worker_is_never_given_up() -> None:
    proto: Any = TrialProto(id='1')
    for begin in range(0, 2000, 100):
        no_service: Any = None
        heartbeat = Heartbeat(no_service)
        counted: Any = Counted(heartbeat)
        heartbeat.steps = 7  # Of another trial.
        hand_out(proto, 'a')
        counted.on_trial_start(None, None)
        heartbeat.steps += 50
        if begin:
            counted.on_trial_resume(None, None, begin)
        heartbeat.steps += 50
        lose(proto, Loss('preempted', is_dead=True), max_attempts=1, step=heartbeat.steps)
        assert (note(proto, 'losses'), note(proto, 'furthest')) == ('1', str(begin + 100))
    assert proto.state == TrialProto.State.ACTIVE
