import collections
import random
import re

import numpy as np
import pyglove as pg
import pytest

from paxtune import space as command
from paxtune.algorithms.encoding.sampling import draw
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.reports.space_costs import Kept, costs, histogram, spread
from paxtune.reports.space_tables import Row, followers, rows, samples
from paxtune.search_space.constraints import Requires
from paxtune.search_space.space import Space
from paxtune.sweeps import parameter_sweep
from tests.paxtune.toys import toy
from tests.paxtune.tunables import Rates, WithoutData
from tests.trainer import tiny_images
from tests.trainer.tiny import experiment
from trainer.layers import Chain, Conv2D, GlobalPool, Linear
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

MODULE = 'tests.paxtune.test_space'
DIMS = 'task.model.embedding.dims'
HEADS = 'task.model.stack.layers[0].attention.num_heads'
HIDDEN = 'task.model.stack.layers[0].feed_forward.hidden_dims'
SIZE = 'task.model.stack.layers[0].attention.head_dim'


def Following() -> Tunable:
    """A head size that follows the width and the number of heads, both of them open."""
    made = Rates()
    made.rebind(
        {
            'task.learner.learning_rate': 0.1,
            DIMS: pg.oneof([8, 12, 16]),
            HEADS: intv(1, 4),
            SIZE: derived('embedding.dims / num_heads'),
            'search.constraints': [Requires(f'{DIMS} != 12', 'twelve is unlucky')],
            'search.limits': [Limit('num_params', at_most=2000)],
        }
    )
    return made


def Table() -> Tunable:
    """A sweep of two rows."""
    return parameter_sweep(experiment(), [DIMS, HEADS], [[8, 2], [16, 4]])


def Widths() -> Tunable:
    """Four widths; two of them are within the limit on parameters, and one within both limits."""
    made = Rates()
    made.rebind(
        {
            'task.learner.learning_rate': 0.1,
            HIDDEN: pg.oneof([32, 64, 128, 1024]),
            'search.limits': [
                Limit('num_params', at_most=4000),
                Limit('state_bytes', at_least=40_000),
                Limit('train/steps_per_second', at_least=1.0),
            ],
        }
    )
    return made


def Images() -> Tunable:
    """Two classifiers of images."""
    base = tiny_images.experiment(Chain([Conv2D(4), GlobalPool(), Linear(4)]))
    made = Tunable(**dict(base.sym_init_args), search=Rates().search)
    return made.rebind({'task.model.layers[0].channels': pg.oneof([4, 8])})


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert command.main(list(flags)) == 0
    return capsys.readouterr().out


def test_rows_say_what_is_legal_and_when_it_is_open():
    value = toy(widths=pg.manyof(2, [1, pg.oneof([2, 3])], distinct=False, sorted=True))
    found = rows(Space(value))
    assert found == [
        Row('rate', 'a number from 0.0001 to 0.1', 'log', ''),
        Row('layer', 'one of Block, Dense, Dense(width=16)', '', ''),
        Row('layer.heads', 'one of 1, 2, 4', '', 'layer = Block'),
        Row('widths', f'2 of 1, {_inner_label(value)}, in this order', '', ''),
        Row('widths[0][=1/2]', 'one of 2, 3', '', f'widths[0] = {_inner_label(value)}'),
        Row('widths[1][=1/2]', 'one of 2, 3', '', f'widths[1] = {_inner_label(value)}'),
    ]


def _inner_label(value):
    space = Space(value)
    return space.candidate_names(space.spec.elements[-1].subchoice(0))[1]


def test_conditions_of_conditions():
    inner = pg.Dict(b=pg.oneof([pg.Dict(c=intv(1, 3)), 0]))
    found = rows(Space(pg.Dict(a=pg.oneof([inner, 1]))))
    assert [row.path for row in found] == ['a', 'a.b', 'a.b.c']
    assert found[2].legal == 'an integer from 1 to 3'
    assert found[2].condition == 'a = {} and a.b = {}'
    assert found[2].scale == 'linear'


def test_followers_are_found_in_candidates_and_in_shared_decisions():
    value = pg.Dict(
        x=pg.oneof([pg.Dict(y=derived('z * 2')), 1]),
        z=pg.oneof([1, 2], name='n'),
        w=pg.oneof([1, 2], name='n'),
    )
    assert followers(Space(value)) == {'x.y': 'z * 2', 'z': 'shared.n', 'w': 'shared.n'}


def test_samples_are_drawn_from_the_seed_or_all_that_there_are():
    space = Space(toy())
    assert samples(space, 3, 7) == samples(space, 3, 7) != samples(space, 3, 8)
    rng = random.Random(7)
    assert samples(space, 3, 7) == [draw(space.spec, rng) for _ in range(3)]
    assert samples(Space(pg.Dict(x=pg.oneof([1, 2]))), 3, 7) == [{'x': 0}, {'x': 1}]


def test_costs_and_why_samples_are_infeasible():
    space = Space(Following())
    found = costs(space, samples(space, 12, 0))
    assert found.num_samples == 12
    reasons = collections.Counter(found.reasons)
    assert reasons.pop('twelve is unlucky') == 3
    attention = 'task.model.stack.layers[0].attention'
    assert reasons.pop(f'{attention}: head_dim must be even for rotary positions: 3') == 1
    assert reasons.pop(next(r for r in reasons if r.startswith(SIZE) and '2.66' in r)) == 1
    assert reasons.pop(next(r for r in reasons if r.startswith(SIZE) and '5.33' in r)) == 1
    assert reasons
    assert all('num_params is' in reason for reason in reasons)
    feasible = 12 - len(found.reasons)
    assert feasible > 0
    assert all(len(values) == feasible for values in found.values.values())
    assert max(found.values['num_params']) <= 2000


def num_params(hidden: int) -> int:
    """Of `Widths`, counted by hand."""
    return 32 * 16 + 3 * 16 + 4 * 16**2 + 2 * 16 * hidden


def test_the_share_of_samples_within_the_limits():
    space = Space(Widths())
    found = costs(space, samples(space, 4, 0))
    assert num_params(64) < 4000 < num_params(128)
    state = {hidden: 12 * num_params(hidden) + 8 for hidden in (32, 64)}
    assert state[32] < 40_000 < state[64]
    assert found.limits == [
        Kept('num_params ≤ 4000', 2, 4),
        Kept('40000 ≤ state_bytes', 3, 4),
        Kept('all of them', 1, 4),
    ]
    assert found.values['state_bytes'] == [state[64]]
    assert len(found.reasons) == 3


def test_costs_of_sub_experiments_are_held_against_limits_as_in_a_trial():
    made = Widths()
    total = Metric.num_params(aggregator='sum')
    limits = [Limit(total, at_most=num_params(32) + num_params(64))]
    made.rebind({'sub_experiments': {'a': {}, 'b': {}}, 'search.limits': limits})
    space = Space(made)
    found = costs(space, samples(space, 4, 0))
    assert found.limits[0].kept == 1
    assert found.values['num_params'] == [num_params(32)] * 2


@pytest.mark.slow
def test_compiled_costs_are_measured_on_request():
    made = Widths()
    made.rebind({'search.limits': [*made.search.limits[:1], Limit('step_seconds', at_most=1e-9)]})
    space = Space(made)
    decided = samples(space, 4, 0)
    assert {'device_memory_bytes', 'step_seconds'} & costs(space, decided).values.keys() == set()
    found = costs(space, decided, is_measured=True)
    assert found.limits == [
        Kept('num_params ≤ 4000', 2, 4),
        Kept('step_seconds ≤ 1e-09', 0, 2),  # What is too large is not timed.
        Kept('all of them', 0, 4),
    ]
    assert [reason.split()[0] for reason in found.reasons] == ['step_seconds'] * 2 + [
        'num_params'
    ] * 2


@pytest.mark.slow
def test_the_command_measures(capsys):
    flags = ['--set', f'{HIDDEN}=32', 'search.limits=[]', 'task.learner.learning_rate=0.1']
    flags += ['--tune', 'task.model.embedding.dims=oneof([8, 16])', '--samples=0']
    plain = shown(capsys, f'--exp={MODULE}.Widths', *flags)
    assert 'bytes of the train state' in plain
    assert 'bytes of device memory' not in plain
    assert 'Limits' not in plain
    measured = shown(capsys, f'--exp={MODULE}.Widths', *flags, '--measured')
    assert 'bytes of device memory' in measured
    assert 'seconds per step' in measured


def test_the_command_shows_limits_and_what_a_task_counts(capsys):
    out = shown(capsys, f'--exp={MODULE}.Widths', '--samples=0')
    assert re.search('num_params ≤ 4000 +│ 2 of 4 +│ 50%', out)
    assert re.search('all of them +│ 1 of 4 +│ 25%', out)
    assert 'FLOPs per token' in out
    out = shown(capsys, f'--exp={MODULE}.Images', '--samples=0')
    assert 'FLOPs per example' in out
    assert 'FLOPs per token' not in out


def test_quantiles_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=37).tolist()
    assert spread(values) == pytest.approx(np.quantile(values, [0, 0.1, 0.5, 0.9, 1]).tolist())
    assert spread([3.0]) == (3.0,) * 5


def test_a_histogram_has_all_values_each_in_its_bin():
    heights = ' ▁▂▃▄▅▆▇█'
    values = [0.0] * 8 + [1.0] * 4 + [2.0] + [4.0] * 2
    assert [heights.index(bar) for bar in histogram(values, 4)] == [8, 4, 1, 2]
    decades = [10.0**power for power in (0, 0, 1, 2, 3)]
    assert [heights.index(bar) for bar in histogram(decades, 4, is_log=True)] == [8, 4, 4, 4]
    assert histogram([5.0, 5.0], 3) == ' █ '


def test_the_command(capsys):
    out = shown(capsys, f'--exp={MODULE}.Following', '--num_costed=12', '--samples=2', '--seed=3')
    assert 'one of 8, 12, 16' in out
    assert 'an integer from 1 to 4' in out
    assert f'{SIZE} │ embedding.dims / num_heads' in out
    assert 'Size: 12 different experiments' in out
    assert '3 × twelve is unlucky' in out
    assert 'parameters' in out
    assert 'FLOPs per token' in out
    assert out == shown(
        capsys, f'--exp={MODULE}.Following', '--num_costed=12', '--samples=2', '--seed=3'
    )
    assert out != shown(
        capsys, f'--exp={MODULE}.Following', '--num_costed=12', '--samples=2', '--seed=4'
    )


def test_a_sweep_is_shown_with_its_rows(capsys):
    out = shown(capsys, f'--exp={MODULE}.Table', '--num_costed=0')
    assert 'one of [8, 2], [16, 4]' in out
    assert f'{DIMS}' in out
    assert 'shared.sweep[1]' in out
    assert 'Size: 2 different experiments' in out
    assert 'Costs' not in out


def test_experiments_without_data_and_search_can_be_shown(capsys):
    out = shown(capsys, '--exp=tests.paxtune.tunables.WithoutData', '--num_costed=2', '--samples=0')
    assert WithoutData().train_input.__class__.__name__ == 'NoData'
    assert 'Costs of 2 samples' in out
    assert 'Samples' not in out
    flags = ['--exp=lm.C4Small', '--smoke', '--num_costed=0', '--tune']
    out = shown(capsys, *flags, 'task.learner.learning_rate=floatv(1e-4, 1e-2, "log")')
    assert 'a number from 0.0001 to 0.01' in out
    assert 'countless' in out


def test_values_can_be_set(capsys):
    flags = [f'--exp={MODULE}.Following', '--num_costed=0', '--set', f'{DIMS}=8']
    assert 'Size: 4 different experiments' in shown(capsys, *flags)


def test_bad_input_is_refused():
    with pytest.raises(UserError, match='--samples must not be negative: -1'):
        command.main([f'--exp={MODULE}.Following', '--samples=-1'])
    with pytest.raises(UserError, match='There is nothing to search'):
        command.main(['--exp=lm.C4Small'])
