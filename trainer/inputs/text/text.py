import functools
import hashlib
from pathlib import Path

from trainer.inputs.text.windows import Corpus, WindowInput, corpus_of
from trainer.runtime.data_paths import find, open_data, version
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError


class TextInput(WindowInput):
    """The bytes of files as one stream, without separators. See `WindowInput` for the batches.

    The text is held in memory.

    Attributes:
        paths: files, directories (all files below them), or patterns such as `books/**/*.txt`,
            on a disk or in a bucket (`gs://…`, `s3://…`). They are read in this order, those of a
            directory or pattern in the order of their names, each file once.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, 'a.txt').write_text('to be or not')
        ...     data = TextInput(batch_size=1, sequence_length=4, paths=[folder])
        ...     batch = data.get_next()
        >>> bytes(batch['ids'][0].tolist()), bytes(batch['labels'][0].tolist())
        (b'to b', b'o be')
    """

    paths: list[str]

    def check(self) -> None:
        super().check()
        if not self.paths:
            raise ValueError('paths must name at least one file, directory or pattern')

    def read(self) -> Corpus:
        files: dict[JobPath, None] = {}
        for path in self.paths:
            found = _files(path)
            if not found:
                raise UserError(
                    f'no file found for {path!r} (current directory {Path.cwd()}). Set '
                    f'{" and ".join(self.settings("paths"))} to files, directories or patterns.'
                )
            files |= dict.fromkeys(found)
        return _read(tuple((file, version(file)) for file in files))


def _files(path: str) -> list[JobPath]:
    return sorted(
        file.resolve() if isinstance(file, Path) else file for file in find(path, below=True)
    )


@functools.lru_cache(maxsize=8)
def _read(files: tuple[tuple[JobPath, str], ...]) -> Corpus:
    # Versions are keys of the cache: a changed file is read again.
    try:
        text = b''.join(map(_content, (file for file, _ in files)))
    except OSError as error:
        raise UserError(f'{error.filename} cannot be read: {error.strerror}') from error
    return corpus_of(text, hashlib.sha256(text).hexdigest())


def _content(file: JobPath) -> bytes:
    with open_data(file) as stream:
        return stream.read()
