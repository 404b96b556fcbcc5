"""Where the documents of a `GrainInput` come from."""

import glob
from pathlib import Path

from trainer.inputs.grain.documents import ArrayRecords, Documents, Lines, ParquetColumn
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


class DocumentSource(Component):
    """Files of documents.

    Attributes:
        paths: files, or patterns such as `books/*.txt`; `**` stands for any directories. Files are
            read in the order of their names.
    """

    paths: list[str]

    def check(self) -> None:
        if not self.paths:
            raise ValueError('paths must name at least one file or pattern')

    def documents(self) -> Documents:
        """The documents.

        Raises:
            UserError: there are none, or they cannot be read.
        """
        raise NotImplementedError(type(self).__name__)

    def files(self) -> list[Path]:
        """The files.

        Raises:
            UserError: a pattern matches none.
        """
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
    """Text files, UTF-8: each line that is not blank is a document."""

    def documents(self) -> Documents:
        return Lines(self.files())


class ArrayRecordFiles(DocumentSource):
    """ArrayRecord files, fast to read in any order where they were written with `group_size:1`.

    Attributes:
        field: records are JSON objects, with the text under this name; '' where they are the text.
    """

    field: str = ''

    def documents(self) -> Documents:
        return ArrayRecords(self.files(), self.field)


class ParquetFiles(DocumentSource):
    """Parquet files. To read one row is to read its row group: see `GrainInput.shuffle_window`.

    Attributes:
        column: the column with the texts.
    """

    column: str = 'text'

    def documents(self) -> Documents:
        return ParquetColumn(self.files(), self.column)
