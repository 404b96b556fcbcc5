"""Experiments for jobs of several processes."""

from tests.factories import real_input_experiments as killed
from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.inputs.text.text import TextInput
from trainer.mesh import Mesh
from trainer.runtime.signals import StopTrial


class Failing(TextInput):
    """A text that the second host cannot read to the end.

    Attributes:
        at_batch: what it fails at.
        stops: whether it says that the trial is to be stopped, rather than fails.
    """

    at_batch: int
    stops: bool = False

    def get_next(self) -> Batch:
        if self._batch == self.at_batch and self.infeed_host_index == 1:
            if self.stops:
                raise StopTrial('enough', reward=7.0)
            raise ValueError('the disk of this host is broken')
        return super().get_next()


class Shorter(TextInput):
    """A text that has fewer batches for the second host, which no input may do."""

    def get_next(self) -> Batch:
        if self.infeed_host_index == 1:
            self._num_read += self.num_hosts * self.batch_size
        return super().get_next()


class Own(TextInput):
    """A text whose positions are valid for the share of their host only."""

    @property
    def positions_are_global(self) -> bool:
        return False


def Text() -> Experiment:
    """On all devices; each of two processes reads half of each batch."""
    made = killed.Text()
    made.rebind(
        {
            'mesh': Mesh(data=-1),
            'train_input.batch_size': 4,
            'eval_inputs.eval.batch_size': 4,
        }
    )
    return made


def _with_input(kind: type[TextInput], path: str, **fields: object) -> Experiment:
    made = Text()
    data = made.sym_get(path)
    copied = {name: data.sym_getattr(name) for name in data.sym_keys()}
    made.rebind({path: kind(**copied, **fields)})
    return made


def BrokenTrainingData() -> Experiment:
    return _with_input(Failing, 'train_input', at_batch=5)


def BrokenEvaluationData() -> Experiment:
    return _with_input(Failing, 'eval_inputs.eval', at_batch=2)


def StoppedByData() -> Experiment:
    return _with_input(Failing, 'train_input', at_batch=5, stops=True)


def ShorterEvaluationData() -> Experiment:
    return _with_input(Shorter, 'eval_inputs.eval')


def OwnPositions() -> Experiment:
    return _with_input(Own, 'train_input')
