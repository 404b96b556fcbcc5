"""The code, commands and links of docs/training.md work."""

import json
from typing import Any

import trainer.decoding
from tests.documents import blocks, pages_of
from trainer import main
from trainer.decoding import Decoder
from trainer.decoding.examples import DecodedExample, Text, text_metrics

(PATH,) = pages_of(__file__)
DOCUMENT = PATH.read_text()


def test_python_runs() -> None:
    pieces = [block for block in blocks(DOCUMENT) if block.language == 'python']
    names: dict[str, Any] = {}
    for piece in pieces:
        exec(compile('\n' * (piece.line - 1) + piece.text, 'docs/training.md', 'exec'), names)
    assert isinstance(names['decoder'], Decoder)
    assert len(names['starts']) == 2


def test_decoded_text_fields_are_documented() -> None:
    (line,) = [block.text for block in blocks(DOCUMENT) if block.language == 'json']
    found = json.loads(line)
    texts = [Text(**text) for text in found['texts']]
    example = DecodedExample(**found | {'texts': texts})
    assert example.to_json() == found
    for name in text_metrics([example]):
        assert f'`{name}`' in DOCUMENT, name


def test_modes_and_decoders_are_documented() -> None:
    for mode in main.MODES:
        assert mode in DOCUMENT, mode
    for name, kind in vars(trainer.decoding).items():
        if isinstance(kind, type) and issubclass(kind, Decoder) and kind is not Decoder:
            assert f'{name}(' in DOCUMENT, name
