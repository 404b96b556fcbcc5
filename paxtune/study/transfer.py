"""What one study takes over from others: trials, and what an algorithm may learn of them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyglove as pg

from paxtune.algorithms import Observation
from paxtune.search_space.labels import label
from paxtune.search_space.space import Space
from paxtune.study.export import adopted, content, import_trials, rewards_of
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.config.search import Search
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


def fork(source: 'Study', study: 'Study') -> int:
    """Adds the ended trials of another study to a study of a changed experiment.

    Decisions are carried over by path. One that the source did not make is taken from the trial's
    concrete experiment, where the new space has it among its candidates.

    Returns:
        How many trials were added.
    """
    return import_trials(study, list(_carried(source, study.space)), _name(source))


def _name(source: 'Study') -> str:
    directory = source.directory
    if directory is None:
        return 'memory'
    return str(directory.resolve() if isinstance(directory, Path) else directory)


def priors(sources: Sequence['Study'], space: Space, search: 'Search') -> list[dict[str, Any]]:
    """What an algorithm may learn from other studies' completed trials, as JSON data.

    Raises:
        UserError: no trial of a source fits into the space.
    """
    found: list[dict[str, Any]] = []
    rewards = search.rewards
    for source in sources:
        before = len(found)
        for each in _carried(source, space):
            decisions = adopted(space, each['decisions'])
            made = rewards_of(rewards, each['metrics'], space)
            complete = len(made) == len(rewards) and each['state'] == 'COMPLETED'
            if decisions is not None and complete:
                scores = [r.score(v) for r, v in zip(rewards, made, strict=True)]
                found.append({'decisions': decisions, 'scores': scores})
        if len(found) == before:
            raise UserError(
                f'--prior_studies: none of the {len(source.trials)} trials in {source.directory} '
                'was completed, has the metrics of the reward and fits into the search space'
            )
    return found


def past_trials(data: Sequence[Mapping[str, Any]]) -> list[Observation]:
    """What `priors` returned, as an algorithm sees it: with numbers up to 0, in their order."""
    return [
        Observation(i + 1 - len(data), dict(each['decisions']), 'completed', tuple(each['scores']))
        for i, each in enumerate(data)
    ]


def _carried(source: 'Study', space: Space) -> Iterator[dict[str, Any]]:
    for trial in source.trials:
        each = content(trial)
        if trial.is_terminal:
            yield each | {'decisions': dict(each['decisions']) | _constants(trial, space)}


def _constants(trial: 'Trial', space: Space) -> dict[str, Any]:
    """What stands at the decisions of a space in a trial that did not decide it."""
    missing = [path for path in space.paths if path not in trial.decisions]
    if not missing:
        return {}
    try:
        experiment = trial.materialize()
    except (UserError, ValueError):
        return {}
    found = {}
    for path in missing:
        if '[=' not in path and experiment.sym_has(pg.KeyPath.parse(path)):
            found[path] = label(experiment.sym_get(pg.KeyPath.parse(path)))
    return found
