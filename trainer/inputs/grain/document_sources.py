import glob
from pathlib import Path

from trainer.inputs.grain.documents import ArrayRecords, Documents, Lines, ParquetColumn
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


class DocumentSource(Component):
    """Files of documents.

    Attributes:
        paths: files, or patterns such as `books/*.txt`; `**` matches any directories. Files are
            read in the order of their names.
    """

    paths: list[str]

    def check(self) -> None:
        if not self.paths:
            raise ValueError('paths must name at least one file or pattern')

    def documents(self) -> Documents:
        """The documents; raises UserError if there are no files, or they cannot be read."""
        raise NotImplementedError(type(self).__name__)

    def files(self) -> list[Path]:
        """The files; raises UserError if a pattern matches none."""
        found: set[Path] = set()
        for path in self.paths:
            place = Path(path).expanduser()
            matches = (
                [place] if place.is_file() else map(Path, glob.iglob(str(place), recursive=True))
            )
            files = {file.resolve() for file in matches if file.is_file()}
            if not files:
                raise UserError(f'paths: no file found for {path!r} in {Path.cwd()}')
            found |= files
        return sorted(found)


class TextLines(DocumentSource):
    """UTF-8 text files: each non-blank line is a document."""

    def documents(self) -> Documents:
        return Lines(self.files())


class ArrayRecordFiles(DocumentSource):
    """ArrayRecord files; random access is fast if they were written with `group_size:1`.

    Attributes:
        field: the name of the text in records that are JSON objects; '' if records are texts.
    """

    field: str = ''

    def documents(self) -> Documents:
        return ArrayRecords(self.files(), self.field)


class ParquetFiles(DocumentSource):
    """Parquet files. Reading a row reads its row group: see `GrainInput.shuffle_window`.

    Attributes:
        column: the column with the texts.
    """

    column: str = 'text'

    def documents(self) -> Documents:
        return ParquetColumn(self.files(), self.column)
