import jax

from trainer.experiment import Experiment
from trainer.inputs.base import Input, require_methods, require_weights
from trainer.inputs.evaluation import check_evaluation
from trainer.layers.pipeline import Schedule
from trainer.layers.stack import Stack
from trainer.layers.tokamax_kernels import require_kernels
from trainer.mesh import Arrangement
from trainer.program.program import Program, program_for
from trainer.program.step_functions import Values
from trainer.runtime.wall_clock import INPUT, during
from trainer.symbolic.component import components
from trainer.symbolic.errors import UserError, prefixed


def localized(experiment: Experiment) -> Experiment:
    """A deep copy whose inputs know the data shard of this host.

    Raises:
        UserError: the mesh does not fit the devices, or the processes.
    """
    experiment = experiment.clone(deep=True)
    num_shards, shard = data_shard(experiment)
    hosts = {'num_infeed_hosts': num_shards, 'infeed_host_index': shard}
    for data in experiment.inputs_by_path.values():
        if data.num_infeed_hosts == 0:
            data.rebind(hosts)
    return experiment


def data_shard(experiment: Experiment) -> tuple[int, int]:
    """Returns (number of shards of a batch, index of the shard of this process).

    Raises:
        UserError: the mesh does not fit the devices, or the processes.
    """
    return _sharded_mesh(experiment)[1] if jax.process_count() > 1 else (1, 0)


@during(INPUT)
def prepare_inputs(experiment: Experiment) -> None:
    """Checks that the data exists and suits the task.

    Raises:
        UserError: it does not; the message begins with the path of the input.
    """
    for path, data in experiment.inputs_by_path.items():
        training = path == 'train_input'
        if data.is_training != training:
            raise UserError(f'{path}.is_training must be {str(training).lower()}')
        require_methods(data, path)
        check_evaluation(data, path)
        with prefixed(path):
            data.prepare()
            check_suits(experiment, path, data)


def check_suits(experiment: Experiment, path: str, data: Input) -> None:
    """Raises UserError unless an input suits the task, which trains, evaluates or decodes on it."""
    experiment.task.check_input(data)
    require_weights(data, experiment.task.weight_features(data.element_spec()))
    if path.startswith('decode_inputs'):
        experiment.task.check_decode_input(data)


def compiled(experiment: Experiment) -> tuple[Program, Values]:
    """The program of an experiment on its mesh, and the numbers to run it with.

    Raises:
        UserError: the mesh does not fit the devices, or the model or a batch the mesh.
    """
    mesh, (num_shards, _) = _sharded_mesh(experiment)
    if experiment.task.kernels == 'tokamax':
        require_kernels(mesh.mesh)
    if experiment.task.precision is not None:
        experiment.task.precision.require_device(mesh.mesh.devices.flat[0])
    check_batch_sizes(experiment, mesh, num_shards)
    check_lengths(experiment, mesh)
    program = program_for(experiment.task, mesh, experiment.train_input.padded_spec())
    return program, program.values(experiment.task)


def begin_compiling(experiment: Experiment, program: Program) -> None:
    """Begins to compile the train step and the evaluation steps, side by side.

    The caller makes the state meanwhile; `Program.end_compiling` waits.
    """
    counts = sorted({1, experiment.train.steps_per_execution})
    specs = [data.padded_spec() for data in experiment.eval_inputs.values()]
    program.begin_compiling([1], [(spec, count) for spec in specs for count in counts])


def _sharded_mesh(experiment: Experiment) -> tuple[Arrangement, tuple[int, int]]:
    try:
        mesh = experiment.mesh.make()
        return mesh, mesh.data_shard()
    except ValueError as error:
        raise UserError(f'mesh: {error}') from error


def check_batch_sizes(experiment: Experiment, mesh: Arrangement, num_shards: int = 1) -> None:
    """Raises UserError unless every batch, of all shards, divides evenly over the devices."""
    data_parts, axes = mesh.parts('batch')
    for path, data in experiment.inputs_by_path.items():
        examples = (data.batch_size + data.batch_padding_size) * num_shards
        microbatches = experiment.task.learner.microbatches if path == 'train_input' else 1
        if examples % (microbatches * data_parts):
            parted = f' in {microbatches} task.learner.microbatches' if microbatches > 1 else ''
            raise UserError(
                f'{path}.batch_size: {examples} examples do not divide evenly{parted} over the '
                f'{data_parts} devices of the mesh axes {" and ".join(axes)}; choose a multiple of '
                f'{microbatches * data_parts}'
            )
        if not path.startswith('decode_inputs'):
            with prefixed(path):
                pipeline_schedules(experiment, mesh, path, num_shards)


def pipeline_schedules(
    experiment: Experiment, mesh: Arrangement, path: str = 'train_input', num_shards: int = 1
) -> dict[str, Schedule]:
    """The schedules of the pipelined stacks of a model, by the path of the stack.

    Args:
        path: path of the input whose batches pass through them.
        num_shards: number of shards of each batch.

    Raises:
        UserError: layers do not divide into stages, or the examples into microbatches.
    """
    stacks = [each for each in components(experiment.task.model) if isinstance(each, Stack)]
    if all(stack.pipeline is None for stack in stacks):
        return {}
    spec = experiment.inputs_by_path[path].padded_spec()
    # A row of a model need not be an example, as in preference pairs.
    rows = jax.tree.leaves(jax.eval_shape(experiment.task.model_inputs, dict(spec)))[0].shape[0]
    parts = experiment.task.learner.microbatches if path == 'train_input' else 1
    each = {
        str(stack.sym_path): stack.schedule(mesh, rows * num_shards // parts) for stack in stacks
    }
    return {where: schedule for where, schedule in each.items() if schedule is not None}


def check_lengths(experiment: Experiment, mesh: Arrangement) -> None:
    """Checks that the positions of every feature divide evenly over the devices.

    Raises:
        UserError: the positions of a feature do not, or no feature has positions.
    """
    sequence_parts, axes = mesh.parts('length')
    if sequence_parts == 1:
        return
    of_mesh = ' × '.join(f'mesh.{axis}' for axis in axes)
    for path, data in experiment.inputs_by_path.items():
        lengths = {
            name: spec.shape[1]
            for name, spec in data.element_spec().items()
            if len(spec.shape) == 2
        }
        if not lengths:
            raise UserError(
                f'{of_mesh}: no feature of {path} has positions, [B, T], that '
                f'{sequence_parts} devices could share; set it to 1'
            )
        for name, length in lengths.items():
            if length % sequence_parts:
                raise UserError(
                    f'{path}: {length} positions of {name!r} do not divide evenly over the '
                    f'{sequence_parts} devices of {of_mesh}; choose a length that is a '
                    f'multiple of {sequence_parts}, or another {of_mesh}'
                )
