from pathlib import Path

from trainer.inputs.grain.arrow_files import data_files
from trainer.inputs.grain.documents import (
    ArrayRecords,
    ArrowColumn,
    Documents,
    Lines,
    ParquetColumn,
)
from trainer.runtime.data_paths import local_copy
from trainer.runtime.directory import JobPath
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


class DocumentSource(Component):
    """Files of documents.

    Attributes:
        paths: files, or patterns such as `books/*.txt`; `**` matches any directories. They may be
            in a bucket (`gs://…`, `s3://…`). Files are read in the order of their names. A
            directory that Hugging Face's `datasets` saved stands for its files.
    """

    paths: list[str]

    def check(self) -> None:
        if not self.paths:
            raise ValueError('paths must name at least one file or pattern')

    def documents(self) -> Documents:
        """The documents; raises UserError if there are no files, or they cannot be read."""
        raise NotImplementedError(type(self).__name__)

    def files(self) -> list[JobPath]:
        """The files; raises UserError if a pattern matches none."""
        found: set[JobPath] = set()
        for path in self.paths:
            files = {
                each.resolve() if isinstance(each, Path) else each for each in data_files(path)
            }
            if not files:
                raise UserError(f'paths: no file found for {path!r} in {Path.cwd()}')
            found |= files
        return sorted(found)

    def _copies(self) -> list[Path]:
        try:
            return [local_copy(file) for file in self.files()]
        except OSError as error:
            reason = f'{error.filename} cannot be copied: {error.strerror}'
            raise UserError(f'paths: {reason}') from error


class TextLines(DocumentSource):
    """UTF-8 text files: each non-blank line is a document.

    They are memory-mapped; those in a bucket are copied to a local disk first.
    """

    def documents(self) -> Documents:
        return Lines(self._copies())


class ArrayRecordFiles(DocumentSource):
    """ArrayRecord files; random access is fast if they were written with `group_size:1`.

    Those in a bucket are copied to a local disk first.

    Attributes:
        field: the name of the text in records that are JSON objects; '' if records are texts.
    """

    field: str = ''

    def documents(self) -> Documents:
        return ArrayRecords(self._copies(), self.field)


class ParquetFiles(DocumentSource):
    """Parquet files. Reading a row reads its row group: see `GrainInput.shuffle_window`.

    Attributes:
        column: the column with the texts.
    """

    column: str = 'text'

    def documents(self) -> Documents:
        return ParquetColumn(self.files(), self.column)


class ArrowFiles(DocumentSource):
    """Arrow files, such as those of `Dataset.save_to_disk` of Hugging Face's `datasets`.

    They are memory-mapped; those in a bucket are copied to a local disk first.

    Attributes:
        column: the column with the texts.
    """

    column: str = 'text'

    def documents(self) -> Documents:
        return ArrowColumn(self._copies(), self.column)
