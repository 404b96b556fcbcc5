"""Shows the parts of an experiment and its costs, without allocating arrays.

    python -m trainer.inspect --exp=lm.C4Small
    python -m trainer.inspect --exp=lm.C4Small --set mesh.fsdp=8 --devices=8
    python -m trainer.inspect --exp=lm.C4Small --set mesh.data=1 mesh.fsdp=4 mesh.dcn_data=2
    python -m trainer.inspect --exp=lm.C4Small --validate

Prints the experiment, and each parameter with its shape, its logical axes and its shard on a
device. Then it prints memory, operations per token, the features of each input, and the learning
rate over the run. It compiles nothing and reads no data. The devices of the mesh need not exist:
a model of 1,030 billion parameters on 2,048 of them takes seconds.

--validate traces one train step and one step of each evaluation set, without data. A mismatch of
shapes is reported with its path, and the exit code is 2.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from trainer.experiment import Experiment
    from trainer.mesh import Arrangement

_WIDTH, _HEIGHT = 60, 6
_BLOCKS = ' ▁▂▃▄▅▆▇█'


class Parameter(NamedTuple):
    """A stored array of parameters.

    Attributes:
        path: path of the parameter.
        shape: full shape.
        axes: the logical axis of each dimension.
        mesh_axes: the mesh axes that divide each dimension.
        shard_shape: shape of the shard on one device.
        used: share of it that computes the result of a token.
    """

    path: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    mesh_axes: tuple[Any, ...]
    shard_shape: tuple[int, ...]
    used: float


class Layout(NamedTuple):
    """Sharding and size of a train state.

    Attributes:
        mesh: the devices, which need not exist.
        slices: slices along each axis.
        parameters: the parameters, in the order of their paths.
        state_bytes: bytes of parameters, optimizer state and averages on one device.
        params_bytes: bytes of the parameters, a part of it.
        num_trained: number of parameters that are not frozen.
        gradient_bytes: bytes of the gradients on one device.
        reference_bytes: bytes of parameters that a preference task compares with, in the state.
    """

    mesh: 'Arrangement'
    slices: dict[str, int]
    parameters: list[Parameter]
    state_bytes: int
    params_bytes: int
    num_trained: int
    gradient_bytes: int
    reference_bytes: int = 0

    @property
    def mesh_shape(self) -> dict[str, int]:
        """Devices along each axis of the mesh."""
        return self.mesh.shape

    @property
    def num_params(self) -> int:
        """Number of parameters."""
        return sum(math.prod(each.shape) for each in self.parameters)

    @property
    def num_active_params(self) -> int:
        """Number of parameters that compute the result of a token."""
        return round(sum(math.prod(each.shape) * each.used for each in self.parameters))


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input, or if --validate finds a mismatch."""
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    flags.add_argument(
        '--devices', type=int, metavar='N', help='number of devices; that of the mesh by default'
    )
    flags.add_argument('--validate', action='store_true', help='find mismatched shapes')
    args = flags.parse_args(argv)
    if args.devices is not None and args.devices < 1:
        raise UserError(f'--devices={args.devices}: expected at least 1')

    from trainer.symbolic.concrete import concrete

    experiment = concrete(command.experiment_of(args))
    found = layout(experiment, args.devices)
    if args.validate:
        validate(experiment, found)
    _print(experiment, found, validated=args.validate)
    return 0


def layout(experiment: 'Experiment', num_devices: int | None = None) -> Layout:
    """Computes the sharding of the train state of a concrete experiment, without its devices.

    The default number of devices is the minimum of the mesh.

    Raises:
        UserError: the mesh does not fit the devices, or a parameter does not divide evenly.
    """
    import jax

    from trainer import state as states
    from trainer.layers.parameters import ParameterBox
    from trainer.learner.paths import subtree
    from trainer.program.step_functions import TracedSteps

    asked = experiment.mesh
    try:
        mesh = asked.abstract(num_devices)
        slices = asked.shapes(num_devices or asked.min_devices())[1]
    except ValueError as error:
        raise UserError(f'mesh: {error}') from error
    traced = TracedSteps(experiment.task, mesh, experiment.train_input.element_spec())
    abstract, boxed = traced.abstract_state, traced.abstract_params
    shardings = states.params_shardings(boxed, mesh)
    whole = states.state_shardings(abstract, shardings, mesh)
    boxes = jax.tree_util.tree_leaves_with_path(
        boxed, is_leaf=lambda leaf: isinstance(leaf, ParameterBox)
    )
    parameters = [
        Parameter(
            jax.tree_util.keystr(path, simple=True, separator='.'),
            box.value.shape,
            tuple(box.names),
            tuple(at.spec),
            at.shard_shape(box.value.shape),
            box.used,
        )
        for (path, box), at in zip(boxes, jax.tree.leaves(shardings), strict=True)
    ]
    trained = experiment.task.learner.trained(abstract.params)
    return Layout(
        mesh,
        dict(zip(asked.axis_names, slices, strict=True)),
        parameters,
        _bytes(abstract, whole),
        _bytes(abstract.params, shardings),
        sum(leaf.size for leaf in jax.tree.leaves(trained)),
        _bytes(trained, subtree(shardings, trained)),
        _bytes(abstract.reference_params, whole.reference_params),
    )


def validate(experiment: 'Experiment', found: Layout) -> None:
    """Traces one train step, and a step of each evaluation and decode set, on shapes alone.

    Raises:
        UserError: parts do not fit together. The message begins with the path.
    """
    from trainer.program.setup import check_batch_sizes, check_lengths
    from trainer.program.step_checks import trace_steps

    check_batch_sizes(experiment, found.mesh)
    check_lengths(experiment, found.mesh)
    trace_steps(experiment, found.mesh)


def _bytes(abstract: Any, shardings: Any) -> int:
    import jax

    leaves = zip(jax.tree.leaves(abstract), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(at.shard_shape(x.shape)) * x.dtype.itemsize for x, at in leaves)


def _print(experiment: 'Experiment', found: Layout, validated: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from trainer.program.costs import static_costs

    # A file has no limit on the width.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(experiment.format(compact=False, verbose=False), markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ('parameter', 'shape', 'axes', 'divided over', 'shard'):
        is_shape = name in ('shape', 'shard')
        table.add_column(name, overflow='fold', justify='right' if is_shape else 'left')
    for each in found.parameters:
        table.add_row(
            each.path,
            _times(each.shape),
            ' '.join(str(axis or '·') for axis in each.axes),
            ' '.join(_axis(axis) for axis in each.mesh_axes) or '·',
            _times(each.shard_shape),
        )
    console.print()
    console.print(table)
    console.print()
    for line in _summary(experiment, found, static_costs(experiment)['flops_per_token']):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    for line in curve(_learning_rates(experiment)):
        console.print(line, markup=False, soft_wrap=True)
    if validated:
        console.print('\nA train step and a step of each set were traced without mismatch.')


def _summary(experiment: 'Experiment', found: Layout, flops_per_token: float) -> Iterator[str]:
    from trainer.program.setup import pipeline_schedules

    num_devices = math.prod(found.mesh_shape.values())
    yield f'mesh            {_mesh_text(found.mesh_shape)} = {num_devices:,} devices'
    num_slices = math.prod(found.slices.values())
    if num_slices > 1:
        within = {axis: n // found.slices[axis] for axis, n in found.mesh_shape.items()}
        yield f'                {num_slices} slices (DCN): {_mesh_text(found.slices)}'
        yield f'                of each slice (ICI): {_mesh_text(within)}'
    for path, schedule in pipeline_schedules(experiment, found.mesh).items():
        yield f'pipeline        {schedule} ({path})'
    yield f'parameters      {found.num_params:,}'
    if found.num_active_params != found.num_params:
        yield f'                {found.num_active_params:,} active for each token'
    if found.num_trained != found.num_params:
        frozen = found.num_params - found.num_trained
        yield f'                {found.num_trained:,} trained, {frozen:,} frozen'
    yield f'FLOPs/{experiment.task.unit:9} {flops_per_token:.4g}, forward and backward'
    yield from _memory(experiment, found)
    for path, data in experiment.inputs_by_path.items():
        specs = data.padded_spec().items()
        yield f'{path:15} {", ".join(f"{name} {s.dtype} {_times(s.shape)}" for name, s in specs)}'
    learner = experiment.task.learner
    yield f'learning rate   at most {float(learner.learning_rate):.4g}, over the run:'


def _memory(experiment: 'Experiment', found: Layout) -> Iterator[str]:
    from trainer.program.residuals import residual_bytes

    yield f'train state     {_gib(found.state_bytes)} per device'
    yield f'                {_gib(found.params_bytes)} of it parameters'
    if found.reference_bytes:
        yield f'                {_gib(found.reference_bytes)} of it reference'
    yield f'gradients       {_gib(found.gradient_bytes)} per device'
    kept = residual_bytes(experiment.task, experiment.train_input.padded_spec(), found.mesh)
    if kept is not None:
        yield f'activations     {_gib(kept)} per device, estimated: kept for the backward pass'
    yield '                without working memory: see device_memory_bytes of the compiled step'


def _gib(number: int) -> str:
    return f'{number / 2**30:.3f} GiB'


def _learning_rates(experiment: 'Experiment') -> list[float]:
    import jax.numpy as jnp

    learner, steps = experiment.task.learner, experiment.train.num_train_steps
    at = jnp.linspace(0, steps - 1, min(_WIDTH, steps)).astype(jnp.int32)
    return [float(learner.learning_rate * learner.schedule.factor(step)) for step in at]


def curve(values: Sequence[float]) -> list[str]:
    """Draws a curve of non-negative numbers as text, one column per number.

    Example:
        >>> print(*curve([0.0, 0.5, 1.0]), sep='|')  # doctest: +NORMALIZE_WHITESPACE
          █|  █|  █| ██| ██| ██
    """
    top = max(values, default=0.0) or 1.0
    levels = [round(value / top * _HEIGHT * 8) for value in values]
    return [
        ''.join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in levels)
        for row in reversed(range(_HEIGHT))
    ]


def _mesh_text(shape: Mapping[str, int]) -> str:
    return ' × '.join(f'{axis} {size}' for axis, size in shape.items())


def _times(shape: tuple[int, ...]) -> str:
    return '×'.join(map(str, shape)) or 'scalar'


def _axis(axis: Any) -> str:
    return '·' if axis is None else '+'.join(axis) if isinstance(axis, tuple) else str(axis)


if __name__ == '__main__':
    command.run_command(main)
