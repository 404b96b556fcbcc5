"""Experiments, and searches of them, for jobs of several processes."""

import pyglove as pg

from paxtune.algorithms import Grid
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import WeightedSum
from paxtune.schedulers import MedianStopping
from tests.factories import real_input_experiments as killed
from tests.factories import tiny, tunables
from tests.factories.tiny import CountingInput
from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.inputs.text.text import TextInput
from trainer.layers import Attention, FeedForward, Pipeline, Stack, TransformerBlock
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


def Rolling() -> Experiment:
    """Text, with evaluations that go on where the last one ended."""
    made = Text()
    fields = {'reset_for_eval': False, 'eval_loop_num_batches': 3, 'sequence_length': 64}
    return made.rebind({f'eval_inputs.eval.{name}': value for name, value in fields.items()})


def _with_input(kind: type[TextInput], path: str, **fields: object) -> Experiment:
    made = Text()
    data = made.sym_get(path)
    copied = {name: data.sym_getattr(name) for name in data.sym_keys()}
    made.rebind({path: kind(**copied, **fields)})
    return made


def BrokenEvaluationData() -> Experiment:
    return _with_input(Failing, 'eval_inputs.eval', at_batch=2)


def StoppedByData() -> Experiment:
    return _with_input(Failing, 'train_input', at_batch=5, stops=True)


def ShorterEvaluationData() -> Experiment:
    return _with_input(Shorter, 'eval_inputs.eval')


_RATE, _BROKEN = 'task.learner.learning_rate', 'train_input.is_broken'


class OneHostFails(CountingInput):
    """Data that the second host cannot read to the end.

    Attributes:
        is_broken: whether that is so.
    """

    is_broken: bool = False

    def get_next(self) -> Batch:
        if self.is_broken and self.infeed_host_index == 1 and self._batch == 3:
            raise ValueError('the disk of this host is broken')
        batch = super().get_next()
        # The hosts have different examples.
        keep = slice(None, None, -1 if self.infeed_host_index else 1)
        return {name: array[:, keep] for name, array in batch.items()}


def Search() -> Tunable:
    """Five trials: the third is stopped early, the fourth fails in the second process."""
    made = tunables.Rates()
    trials = [(0.03, False), (0.02, False), (1e-4, False), (0.02, True), (0.05, False)]
    made.rebind(
        {
            'mesh': Mesh(data=-1),
            'train_input': OneHostFails(
                batch_size=8, is_training=True, is_broken=pg.oneof([False, True])
            ),
            'search.budget.trials': len(trials),
            'search.initial_trials': [{_RATE: rate, _BROKEN: broken} for rate, broken in trials],
            'search.scheduler': MedianStopping(min_trials=2),
        }
    )
    return made


def Timed() -> Tunable:
    """Three trials, rewarded for short steps."""
    made = tunables.Rates()
    hidden = 'task.model.stack.layers[0].feed_forward.hidden_dims'
    made.rebind(
        {
            'mesh': Mesh(data=-1),
            hidden: pg.oneof([32, 64, 512]),
            'search.budget.trials': 3,
            'search.algorithm': Grid(),
            'search.objective': WeightedSum(
                'minimize', ['eval/log_pplx', 'step_seconds'], [1.0, 1.0]
            ),
            'search.limits': [Limit('step_seconds', at_most=1000.0)],
        }
    )
    return made.rebind({'task.learner.learning_rate': 0.01})


def Pipelined() -> Experiment:
    """Four blocks in the stages of two processes, 20 steps."""
    block = TransformerBlock(Attention(2), FeedForward(32))
    stack = Stack([block], repeats=4, pipeline=Pipeline(num_microbatches=4))
    return tiny.experiment(
        20,
        task__model__stack=stack,
        train__evaluation__every=5,
        train__checkpoints__every=5,
        mesh=Mesh(data=2, tensor=2, dcn_stage=2, dcn_data=1),
    )
