import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from trainer.inputs.libraries import libraries
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.names import PACKAGES

_importable: set[str] = set()


def allow_task_module(name: str) -> None:
    """Lets `SeqIOInput.module` name a module of yours, which is imported when data is read.

    Experiments may be loaded from files, and a file must not choose the code that runs. So a module
    outside of this project is imported only if your code allows it by this call, or imports it.
    """
    _importable.add(name)


def provider(name: str, module: str, setting: str) -> Any:
    """The task or mixture of a name.

    Args:
        name: in SeqIO's registries.
        module: the module that registers it; '' if it is imported already.
        setting: the path of the field with the module, for messages.

    Raises:
        UserError: there is no such task, or the module is not allowed.
    """
    seqio = libraries().seqio
    _import_module(module)
    try:
        return seqio.get_mixture_or_task(name)
    except ValueError:
        names = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
        raise UserError(
            f'no SeqIO task or mixture is called {name!r}. {nearest(name, names)} {setting} names '
            'the module that registers it.'
        ) from None


def shards_of(task: Any, split: str) -> list[str]:
    """The shards of a task by name, and by size if they are files."""
    gfile = libraries().tf.io.gfile
    return [
        f'{path.rpartition("/")[2]} {gfile.stat(path).length if gfile.exists(path) else ""}'
        for path in task.source.list_shards(split)
    ]


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """Prevents TFDS from caching small data sets in memory, and so in every saved position."""
    tfds, utils = libraries().tfds, libraries().seqio.utils
    before = getattr(utils, '_TFDS_DATA_READ_CONFIG_OVERRIDE', None)
    utils.set_tfds_read_config_override(before or tfds.ReadConfig(try_autocache=False))
    try:
        yield
    finally:
        utils.set_tfds_read_config_override(before)


def _import_module(name: str) -> None:
    if not name or name in sys.modules:
        return
    if name not in _importable and name.partition('.')[0] not in PACKAGES:
        raise UserError(
            f'module {name!r} is not imported, because experiments may be loaded from files. '
            f'Import it where your experiment is defined, or call there '
            f'trainer.inputs.allow_task_module({name!r}).'
        )
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f'module {name!r} cannot be imported: {error}') from error
