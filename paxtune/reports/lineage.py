from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from paxtune.reports.tables import Document, Row, branches, cell
from paxtune.study.columns import reward_columns
from trainer.command import counted

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


def lineage(study: 'Study') -> Document:
    """The trials of a study as trees, each below the trial that its weights came from.

    The text has only trials that are related to another one; the data have all.
    """
    trials = {trial.id: trial for trial in study.trials}
    rewards = reward_columns(study.rewards)
    rows = {number: _row(trial, trials, rewards) for number, trial in trials.items()}
    trees: dict[int, Tree] = {}
    roots = []
    for number, row in rows.items():
        line = Text(cell(_line(row, rewards, study.space.short_names)))
        # The parent comes first, unless another program has written something else.
        if row['parent'] in trees:
            trees[number] = trees[row['parent']].add(line)
        else:
            trees[number] = Tree(line)
            roots.append(number)
    drawn = [
        trees[each] for each in roots if trees[each].children or rows[each]['parent'] is not None
    ]
    alone = len(roots) - len(drawn)
    remarks = [branches(drawn)] if drawn else []
    if alone:
        others = counted(alone, 'other trial' if drawn else 'trial')
        have = 'has' if alone == 1 else 'have'
        remarks.append(f'{others} started from scratch and {have} no children.')
    columns = ['trial', 'state', *rewards, 'parent', 'from_step', 'inherited_steps']
    columns += ['replaces', 'changes']
    data = list(rows.values())
    return Document(data, data, columns, [], '\n\n'.join(remarks or ['There are no trials yet.']))


def _row(trial: 'Trial', trials: Mapping[int, 'Trial'], rewards: Sequence[str]) -> Row:
    parent, step = trial.lineage.weights_from or (None, None)
    measured = [each.rewards for each in trial.measurements if each.rewards]
    values = trial.rewards or (measured[-1] if measured else ())
    known = trials.get(parent) if parent is not None else None
    return {
        'trial': trial.id,
        'state': trial.status,
        **dict.fromkeys(rewards),
        **dict(zip(rewards, values, strict=False)),
        'parent': parent,
        'from_step': step,
        'inherited_steps': inherited_steps(trial, trials),
        'replaces': trial.lineage.replaces,
        'changes': dict(_changes(known, trial)) if known is not None else {},
    }


def inherited_steps(trial: 'Trial', trials: Mapping[int, 'Trial']) -> int | None:
    """The steps of all ancestors whose weights a trial began with; None if unknown.

    A fork's steps include the steps of its origin, so only the origin's inherited steps count.
    """
    origin = trial.lineage.weights_from
    if origin is None:
        return 0
    number, step = origin
    if step is None or number not in trials:
        return None
    before = inherited_steps(trials[number], trials)
    if before is None or trial.lineage.forked_from is not None:
        return before
    return before + step


def _changes(parent: 'Trial', trial: 'Trial') -> Iterator[tuple[str, list[Any]]]:
    for path in dict.fromkeys([*parent.decisions, *trial.decisions]):
        both = [parent.decisions.get(path), trial.decisions.get(path)]
        if both[0] != both[1]:
            yield path, both


def _line(row: Row, rewards: Sequence[str], names: Mapping[str, str]) -> str:
    parts = [f'{row["trial"]} {row["state"]}']
    parts += [f'{name}={row[name]:.6g}' for name in rewards if row[name] is not None]
    if row['parent'] is not None:
        step = '' if row['from_step'] is None else f'step {row["from_step"]} of '
        parts.append(f'from {step}trial {row["parent"]}')
    if (row['inherited_steps'] or 0) > (row['from_step'] or 0):
        parts.append(f'{row["inherited_steps"]} inherited steps')
    if row['replaces'] is not None:
        parts.append(f'replaces trial {row["replaces"]}')
    parts += [
        f'{names.get(path, path)} {cell(before) or "none"} → {cell(after) or "none"}'
        for path, (before, after) in row['changes'].items()
    ]
    return ', '.join(parts)
