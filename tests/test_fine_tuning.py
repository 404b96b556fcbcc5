"""The code, commands and links of docs/fine-tuning.md work."""

from typing import Any

from tests.documents import blocks, pages_of
from trainer.tasks import PreferenceTask

(PATH,) = pages_of(__file__)
DOCUMENT = PATH.read_text()


def test_python_runs() -> None:
    names: dict[str, Any] = {}
    for piece in blocks(DOCUMENT):
        if piece.language == 'python':
            code = '\n' * (piece.line - 1) + piece.text
            exec(compile(code, 'docs/fine-tuning.md', 'exec'), names)
    assert isinstance(names['task'], PreferenceTask)
