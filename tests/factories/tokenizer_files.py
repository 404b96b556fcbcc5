"""Directories with a `tokenizer.json`, as Hugging Face has them, trained on a few words."""

import json
from pathlib import Path
from typing import Any, Literal

END, BEGIN, UNKNOWN = '<|end|>', '<s>', '[UNK]'
WORDS = ['hello world', 'the answer is below', 'a question above', '12 + 30 = 42']


def make_tokenizer(
    folder: Path,
    kind: Literal['bytes', 'pieces', 'words'] = 'bytes',
    *,
    size: int = 300,
    adds_bos: bool = False,
    **settings: Any,
) -> Path:
    """Writes a tokenizer and its settings.

    Args:
        folder: the directory.
        kind: byte-level BPE as of Llama 3; BPE with byte fallback as of Llama 2; or WordPiece.
        size: number of ids.
        adds_bos: the tokenizer puts its token for a beginning before each text.
        settings: of `tokenizer_config.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make = {'bytes': _bytes, 'pieces': _pieces, 'words': _words}[kind]
    tokenizer = make(size)
    if adds_bos:
        from tokenizers import processors

        tokenizer.post_processor = processors.TemplateProcessing(
            single=f'{BEGIN} $A', special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
        )
    # Files have both, which rows must not get.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / 'tokenizer.json'))
    known = {'eos_token': END, 'bos_token': {'content': BEGIN}} | settings
    (folder / 'tokenizer_config.json').write_text(json.dumps(known))
    return folder


def _bytes(size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        WORDS * 5,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[END, BEGIN],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return made


def _pieces(size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = [UNKNOWN, BEGIN, END, *(f'<0x{byte:02X}>' for byte in range(256))]
    letters = sorted({*''.join(WORDS).replace(' ', '▁')})
    vocab = {piece: number for number, piece in enumerate([*pieces, *letters, '▁h', 'el'])}
    merges = [('▁', 'h'), ('e', 'l')]
    made = Tokenizer(models.BPE(vocab, merges, unk_token=UNKNOWN, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace('▁', ' '),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(' ', 1, 0),
        ]
    )
    made.add_special_tokens([UNKNOWN, BEGIN, END])
    return made


def _words(size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece()
    special = [UNKNOWN, '[CLS]', '[SEP]', BEGIN, END]
    made.train_from_iterator(
        WORDS * 5,
        trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False),
    )
    return made
