"""Experiments whose trials are slow enough to be disturbed, or disturb their workers themselves."""

import gc
import os
import signal
import time

import pyglove as pg

from paxtune.experiment import Tunable
from paxtune.study.invariants import InvariantError
from tests.factories import tunables
from tests.factories.tiny import CountingInput
from tests.factories.tunables import Rates
from trainer.inputs.base import Batch

_GIB = 2**30


class FaultyInput(CountingInput):
    """Batches that take their time, one of which does what no worker survives.

    Attributes:
        seconds: how long a batch takes.
        fault: 'none'; 'abort', the process dies; 'hang', the batch never comes; 'memory', it takes
            three GiB; the name of a signal, which the process gets. With 'invariant' an
            invariant of the study breaks.
        at: the batch that does it.
    """

    seconds: float = 0.0
    fault: str = 'none'
    at: int = 3

    def get_next(self) -> Batch:
        time.sleep(self.seconds)
        if self._batch == self.at and self.fault != 'none':
            _do(self.fault)
        return super().get_next()


def _do(fault: str) -> None:
    if fault == 'abort':
        os.abort()
    if fault.startswith('SIG'):
        os.kill(os.getpid(), signal.Signals[fault])
        return
    if fault == 'invariant':
        raise InvariantError('trial 1: its decisions have changed')
    taken = b'x' * (3 * _GIB if fault == 'memory' else 0)
    time.sleep(3600)
    del taken


def _with(data: FaultyInput, num_steps: int) -> Tunable:
    made = Rates()
    made.rebind(train_input=data)
    return made.rebind(
        {
            'train.num_train_steps': num_steps,
            'train.checkpoints.every': 10,
            'train.evaluation.every': 20,
            'search.budget.trials': 6,
        }
    )


def Slow() -> Tunable:
    """Trials of six seconds."""
    return _with(FaultyInput(batch_size=8, is_training=True, seconds=0.1), 60)


def Faulty() -> Tunable:
    """Each fault, and none."""
    return _failing('none', 'abort', 'hang', 'memory')


def Hungry() -> Tunable:
    """A trial that needs too much memory, and one that does not."""
    return _failing('none', 'memory')


def _failing(*faults: str) -> Tunable:
    data = FaultyInput(batch_size=8, is_training=True, fault=pg.oneof(faults))
    made = _with(data, 10)
    made.rebind({'task.learner.learning_rate': 1e-2, 'search.budget.trials': len(faults)})
    return made


class CollectingInput(CountingInput):
    """Batches for a process that collects its garbage. Of the first one, a start has a look."""

    def get_next(self) -> Batch:
        if self._batch and not gc.isenabled():
            raise RuntimeError('garbage is not collected')
        return super().get_next()


def CollectingRates() -> Tunable:
    """`tunables.Rates` with such batches."""
    made = tunables.Rates()
    made.rebind(train_input=CollectingInput(batch_size=8, is_training=True))
    return made
