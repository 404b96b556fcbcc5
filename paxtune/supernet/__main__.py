"""Ranks the architectures of an experiment with shared weights, and trains the best alone.

    python -m paxtune.supernet --exp=nas.StdlibKinds --top=4

All decisions must be choices between layers of the model; fix the others with --set. The command
trains a supernet in <job_log_dir>/supernet: a model with all candidates of each layer. Each step
trains one random path, which is one candidate of each layer. Then the command evaluates paths with
the shared weights: all of them, or --num_paths by evolution. supernet/paths.json ranks them. The
--top best become the first trials of the study in <job_log_dir>, and train alone from scratch.

The same command again resumes. If --num_trials exceeds --top, the algorithm suggests the other
trials. To train the trials with workers, run paxtune.search with
--initial_trials=<job_log_dir>/supernet/best.json. Exit codes: as paxtune.search.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paxtune import command_line
from paxtune.engines import flags as engine_flags
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

    from paxtune.experiment import Tunable
    from paxtune.supernet.supernet import Supernet
    from trainer.runtime.directory import JobPath


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)

    from paxtune.supernet.supernet import supernet
    from trainer.main import train
    from trainer.runtime.directory import job_path
    from trainer.symbolic import overrides

    tunable, again = command_line.tunable_for(args), ['paxtune.supernet', *command.given(argv)]
    _require_fit(tunable, args)
    made = supernet(tunable)
    made = dataclasses.replace(
        made,
        experiment=overrides.override(made.experiment, args.supernet_set, '--supernet_set'),
    )
    options = command_line.study_options(args, f'{command_line.study_name(args)}-supernet')
    directory = job_path(options['job_log_dir']) / 'supernet'
    if code := train(made.experiment, str(directory), ['python', '-m', *again]):
        return code
    best = _best(made, tunable, args, directory)
    tunable.rebind({'search.initial_trials': [*best, *tunable.search.initial_trials]})
    if args.num_trials is None:
        total = len(tunable.search.initial_trials)
        tunable.rebind({'search.budget.trials': total}, raise_on_no_change=False)
    return command_line.run(
        tunable,
        again,
        lambda study: command_line.summary(study, args.exp),
        quiet=args.quiet,
        **options,
    )


def parser() -> 'argparse.ArgumentParser':
    """Makes the parser of the command's flags."""
    flags = command_line.search_parser(__doc__)
    flags.description = __doc__
    flags.add_argument(
        '--top', type=command.positive_int, default=4, help='paths to train alone; default: 4'
    )
    flags.add_argument('--num_paths', type=command.positive_int, default=200, help='default: 200')
    command.add_list_flag(
        flags,
        '--supernet_set',
        'PATH=VALUE',
        'set a field of the supernet only, such as train.num_train_steps=1000',
    )
    return flags


def _require_fit(tunable: 'Tunable', args: 'argparse.Namespace') -> None:
    if args.dry_run:
        raise UserError('--dry_run is a flag of paxtune.search')
    is_apart = args.coordinator is not None or args.num_processes is not None
    if is_apart or engine_flags.from_flags(args, command_line.study_name(args)) is not None:
        raise UserError(
            'a supernet and its trials train in this process. For workers, or several processes, '
            'run paxtune.search afterwards, with --initial_trials=…/supernet/best.json'
        )
    if len(tunable.search.rewards) != 1:
        raise UserError(
            f'search.objective: paths are ranked by one reward; there are '
            f'{len(tunable.search.rewards)}'
        )


def _best(
    made: 'Supernet', tunable: 'Tunable', args: 'argparse.Namespace', directory: 'JobPath'
) -> list[dict[str, Any]]:
    """Ranks paths, and returns the decisions of the best."""
    from paxtune.reports.tables import Table, to_text
    from paxtune.supernet.ranking import PathEvaluator, ranked
    from trainer.runtime.directory import write_json

    (reward,) = tunable.search.rewards
    evaluator = PathEvaluator(made, reward, directory)
    paths = ranked(made, tunable.search, evaluator.reward, args.num_paths)
    rows = [(each.reward, made.space.readable(each.decisions)) for each in paths]
    trials = [{'reward': value, 'decisions': decisions} for value, decisions in rows]
    write_json(directory / 'paths.json', {'trials': trials})
    best = [decisions for _, decisions in rows[: args.top]]
    write_json(directory / 'best.json', best)
    names = made.space.short_names
    table = [
        {reward.label: value, **{names[path]: name for path, name in decisions.items()}}
        for value, decisions in rows[: args.top]
    ]
    title = f'The best of {len(paths)} paths of {made.space.size:,}, with shared weights'
    columns = [reward.label, *names.values()]
    command.say_once(to_text(Table(table, columns, title, f'All: {directory / "paths.json"}')))
    return best


if __name__ == '__main__':
    command.run_command(main)
