"""The completers of flags and arguments."""

import argparse
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Completer: TypeAlias = Callable[..., list[str]]
"""Called with the keywords `prefix`, `parsed_args` and others; returns completed words."""


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Gives the actions of a parser, and of its commands, their completers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                add_completers(each)
        elif (completer := _completer(action)) is not None:
            action.completer = completer  # type: ignore[attr-defined]


def add_words(
    parser: argparse.ArgumentParser, commands: Sequence[str], shells: Sequence[str]
) -> None:
    """Gives the parser of the first word the commands; the last command has the name of a shell."""
    for action in parser._actions:
        if action.dest == 'command':
            action.completer = lambda **_: commands  # type: ignore[attr-defined]
        elif action.dest == 'rest':
            action.completer = lambda parsed_args, **_: (  # type: ignore[attr-defined]
                shells if parsed_args.command == commands[-1] else []
            )


def _completer(action: argparse.Action) -> Completer | None:
    if action.dest in _COMPLETERS:
        return _quiet(_COMPLETERS[action.dest])
    if action.metavar is not None and 'FILE' in action.metavar:
        return _quiet(_files)
    return None


def _quiet(completer: Completer) -> Completer:
    """Completes nothing where the completer fails: there is no place for a message."""

    @functools.wraps(completer)
    def complete(**keywords: Any) -> list[str]:
        try:
            return completer(**keywords)
        except Exception:
            return []

    return complete


def _experiments(prefix: str, **_: object) -> list[str]:
    from paxtune.completion import source_names

    return source_names.experiments(prefix, Path())


def _algorithms(**_: object) -> list[str]:
    from paxtune.completion import source_names

    return source_names.algorithms()


def _schedulers(**_: object) -> list[str]:
    from paxtune.completion import source_names

    return ['none', *source_names.schedulers()]


def _paths(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    from paxtune.completion.paths import completed, settable
    from trainer.experiment import Experiment
    from trainer.symbolic import registry

    return completed(settable(registry.find(parsed_args.exp, Experiment)), prefix)


def studies(prefix: str, **_: object) -> list[str]:
    """Completes the directory of a study: those of studies, and those that lead to others."""
    head = os.path.dirname(prefix)
    found = list(_directories(Path(head), head, prefix))
    runs = Path('runs')
    if not prefix and runs.is_dir():
        found += _directories(runs, 'runs', '')
    return found


def _directories(folder: Path, head: str, prefix: str) -> Iterator[str]:
    for each in sorted(folder.iterdir()):
        path = os.path.join(head, each.name)
        if each.is_dir() and path.startswith(prefix) and not each.name.startswith('.'):
            yield path if (each / 'study.db').exists() else f'{path}/'


def _files(prefix: str, **_: object) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter()(prefix))


_COMPLETERS: dict[str, Completer] = {
    'exp': _experiments,
    'algorithm': _algorithms,
    'scheduler': _schedulers,
    'set': _paths,
    'tune': _paths,
    'dir': studies,
    'study_dir': studies,
    'job_log_dir': studies,
    'prior_studies': studies,
    'fork_study': studies,
}
"""By the name of the flag, without dashes."""
