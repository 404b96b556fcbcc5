"""Shows the data of an experiment as text, and checks it, without training.

    python -m trainer.inspect_input --exp=lm.StdlibTunable
    python -m trainer.inspect_input --exp=lm.C4Small --input=eval_inputs.eval --num_batches=1
    python -m trainer.inspect_input --exp=lm.C4Small --input=train_input --num_batches=1 \\
        --from_checkpoint=runs/c4/checkpoints/100 --skip_batches=20

Prints some batches of each input: their shapes, the share of padding, the packing of rows, and
examples as text. Then it reads the data as two, three and four hosts would. It checks that hosts
read distinct examples, that evaluations end together, and that all inputs have one vocabulary. The
third command shows batch 121, where a run may have failed.

Exit codes: 0 success, 2 bad input, or a failed check.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer import command
from trainer.symbolic.errors import UserError, prefixed

if TYPE_CHECKING:
    from trainer.experiment import Experiment
    from trainer.inputs.base import Input


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input, or if a check of the data fails."""
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    command.add_list_flag(
        flags, '--input', 'PATH', 'inputs to show and check, such as train_input; all by default'
    )
    flags.add_argument('--num_batches', type=int, default=2, help='batches to show of each input')
    flags.add_argument('--num_rows', type=int, default=2, help='examples to show of each batch')
    flags.add_argument(
        '--num_host_batches',
        type=int,
        default=4,
        help='batches that each simulated host reads; 0 skips this check',
    )
    flags.add_argument(
        '--skip_batches', type=int, default=0, metavar='N', help='number of batches to skip'
    )
    flags.add_argument(
        '--from_checkpoint',
        metavar='PATH',
        help='show train_input from its position in this checkpoint, checkpoints/STEP',
    )
    args = flags.parse_args(argv)
    minima = {'num_batches': 1, 'num_rows': 0, 'num_host_batches': 0, 'skip_batches': 0}
    for name, least in minima.items():
        if getattr(args, name) < least:
            raise UserError(f'--{name} must be at least {least}: {getattr(args, name)}')

    from trainer.program.input_checks import check_hosts, check_vocabularies
    from trainer.program.setup import prepare_inputs

    experiment = with_concrete_inputs(command.experiment_of(args))
    inputs = experiment.inputs_by_path
    chosen = _chosen(inputs, args.input)
    prepare_inputs(experiment)
    read = 0
    if args.from_checkpoint is not None:
        if list(chosen) != ['train_input']:
            raise UserError('--from_checkpoint shows train_input: add --input=train_input')
        read = go_to_checkpoint(experiment.train_input, args.from_checkpoint)
    for path, data in chosen.items():
        show(path, data, args.num_batches, args.num_rows, args.skip_batches, read)
    for path, data in chosen.items() if args.num_host_batches else []:
        print(f'{path}: {check_hosts(path, data, args.num_host_batches)}')
    print(check_vocabularies(inputs))
    return 0


def with_concrete_inputs(experiment: 'Experiment') -> 'Experiment':
    """Resolves an experiment whose inputs have no open decisions; other parts may have some.

    Raises:
        UserError: an input has open decisions or derived values.
    """
    from trainer.symbolic.concrete import concrete, open_decisions
    from trainer.symbolic.derived import derived_values

    if not open_decisions(experiment):
        return concrete(experiment)
    for path, data in experiment.inputs_by_path.items():
        found = [*open_decisions(data), *map(str, derived_values(data))]
        if found:
            raise UserError(f'{path} is not concrete: {", ".join(found)}. Set values with --set')
    return experiment


def _chosen(inputs: 'dict[str, Input]', paths: Sequence[str]) -> 'dict[str, Input]':
    from trainer.symbolic.errors import nearest

    for path in paths:
        if path not in inputs:
            hint = nearest(path, inputs) or f'There are {", ".join(inputs)}.'
            raise UserError(f'--input={path}: there is no such input. {hint}')
    return {path: data for path, data in inputs.items() if not paths or path in paths}


def go_to_checkpoint(data: 'Input', path: str) -> int:
    """Sets the training input to its position in a checkpoint.

    Returns:
        The number of batches that the run had read.

    Raises:
        UserError: there is no checkpoint, or it belongs to other data.
    """
    from trainer.checkpoints.checkpoint import newest_checkpoint
    from trainer.checkpoints.reader import CheckpointReader

    checkpoint = newest_checkpoint(path)
    if checkpoint is None:
        raise UserError(f'--from_checkpoint={path}: there is no checkpoint')
    positions = CheckpointReader(checkpoint).progress.positions
    if len(positions) > 1 and not data.positions_are_global:
        raise UserError(
            f'--from_checkpoint={path}: several processes wrote it, each with its own shard of the '
            'data'
        )
    with prefixed(f'--from_checkpoint={path}'):
        data.set_position(positions[0])
    return int(checkpoint.name)


def show(
    path: str, data: 'Input', num_batches: int, num_rows: int, skip: int = 0, read: int = 0
) -> None:
    """Prints batches of an input that has read some, after skipping others."""
    import contextlib

    from trainer.inputs.base import EndOfData, Input
    from trainer.inputs.text_of_batches import describe, spell

    print(f'{path}: {type(data).__name__}, {data.batch_size} examples per batch')
    for name, spec in data.element_spec().items():
        print(f'  {name}: {spec.dtype}{list(spec.shape)}')
    with contextlib.closing(data):
        for number in range(read + 1, read + skip + num_batches + 1):
            try:
                batch = data.get_next()
            except EndOfData:
                print(f'  the set ends after {number - 1} batches')
                break
            if number <= read + skip:
                continue
            print(f'  batch {number}: {describe(batch)}')
            for row in range(min(num_rows, data.batch_size)):
                for line in spell(data, batch, row):
                    print(f'    {row}: {line}')
        if type(data).reset is not Input.reset:  # A training input needs none.
            data.reset()


if __name__ == '__main__':
    command.run_command(main)
