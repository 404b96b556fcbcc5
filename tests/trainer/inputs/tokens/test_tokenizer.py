"""`tokenizer.json` as a vocabulary: ids, special tokens, bytes, and files that do not fit."""

import gzip
import json
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.tokenizer_files import BEGIN, make_tokenizer
from trainer.decoding import Greedy
from trainer.inputs import JsonShardsInput
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.layers import Embedding, Stack, TransformerLm
from trainer.learner import Learner
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask

TEXT = 'hello wörld ☃\n\n  the answer'


def test_texts_become_the_ids_of_the_library_and_come_back(tmp_path: Path) -> None:
    import tokenizers

    folder = make_tokenizer(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    library.no_truncation()
    library.no_padding()
    vocabulary = vocabulary_at(str(folder))
    ids = vocabulary.encode(TEXT)
    assert ids.tolist() == library.encode(TEXT).ids
    assert ids.dtype == np.int32
    assert vocabulary.decode(np.array([*ids, vocabulary.eos_id, 10**6])) == TEXT
    assert vocabulary.vocab_size == library.get_vocab_size()
    assert vocabulary_at(str(folder / 'tokenizer.json')).fingerprint == vocabulary.fingerprint


@pytest.mark.parametrize('kind', ['bytes', 'pieces'])
def test_bytes_add_up_to_the_text(tmp_path: Path, kind: Literal['bytes', 'pieces']) -> None:
    vocabulary = vocabulary_at(str(make_tokenizer(tmp_path, kind)))
    text = TEXT if kind == 'bytes' else f' {TEXT}'  # These begin with a space.
    assert vocabulary.bytes_per_id[vocabulary.encode(TEXT)].sum() == len(text.encode())
    assert vocabulary.bytes_per_id[[vocabulary.eos_id, vocabulary.bos_id]].tolist() == [0, 0]


def test_bytes_of_word_pieces_are_those_of_the_words(tmp_path: Path) -> None:
    vocabulary = vocabulary_at(str(make_tokenizer(tmp_path, 'words')))
    ids = vocabulary.encode('hello world ☃')  # The last one is an unknown token, of one byte.
    assert vocabulary.bytes_per_id[ids].sum() == len('helloworld?')


def test_files_beside_the_tokenizer_name_special_tokens(tmp_path: Path) -> None:
    both = vocabulary_at(str(make_tokenizer(tmp_path / 'both')))
    assert (both.eos_ids, both.bos_id, both.prefix) == ([0], 1, [])
    adds = vocabulary_at(str(make_tokenizer(tmp_path / 'adds', adds_bos=True)))
    assert adds.prefix == [1]
    assert adds.encode('hello').tolist() == both.encode('hello').tolist()
    told = vocabulary_at(str(make_tokenizer(tmp_path / 'told', add_bos_token=True)))
    assert told.prefix == [1]
    folder = make_tokenizer(tmp_path / 'ends', bos_token=None)
    (folder / 'generation_config.json').write_text('{"eos_token_id": [7, 0]}')
    ends = vocabulary_at(str(folder))
    assert (ends.eos_id, ends.eos_ids, ends.bos_id) == (0, [0, 7], 0)
    folder = make_tokenizer(tmp_path / 'map', eos_token=None)
    (folder / 'special_tokens_map.json').write_text(json.dumps({'eos_token': BEGIN}))
    assert vocabulary_at(str(folder)).eos_id == 1


def test_id_0_is_a_token_that_a_batch_keeps(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    with gzip.open(tmp_path / 'a.json.gz', 'wt') as file:
        file.write('{"text": "hello"}\n')
    data = JsonShardsInput(
        batch_size=1, sequence_length=6, vocabulary=str(folder), paths=[f'{tmp_path}/*.json.gz']
    )
    batch = data.get_next()
    size = int(batch['weights'].sum())
    tokens = vocabulary_at(str(folder)).encode('hello').tolist()
    assert batch['labels'][0, :size].tolist() == [*tokens, 0]
    assert batch['ids'][0, :size].tolist() == [1, *tokens]
    assert data.start_id == 1
    assert not batch['ids'][0, size:].any()


def test_a_decoder_takes_the_ends_of_a_tokenizer(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    assert Greedy(4, eos_ids=str(folder)).end_ids() == [0]
    assert Greedy(4, eos_ids=str(folder)).is_eos(jnp.array([0, 1])).tolist() == [True, False]
    with pytest.raises(UserError, match=r'^task.decoder.eos_ids: vocabulary .*cannot be read'):
        Greedy(4, eos_ids=str(tmp_path / 'missing.json')).end_ids()


@pytest.mark.parametrize('template', ['[3]', '[{"name": "default"}]', '{"default": "x"}'])
def test_a_chat_template_that_is_none_is_missing(template: str, tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    file = folder / 'tokenizer_config.json'
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {'chat_template': json.loads(template)})
    )
    assert vocabulary_at(str(folder)).chat_template == ''


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('tokenizer.json', '{"model": 3}', 'it is no tokenizer.json of the library'),
        ('tokenizer.json', None, r'it cannot be read \(No such file'),
        ('tokenizer_config.json', '{', 'tokenizer_config.json is no JSON'),
        ('tokenizer_config.json', '[]', 'tokenizer_config.json is no JSON object'),
        ('tokenizer_config.json', '{}', 'add "eos_token" to .*tokenizer_config.json'),
        ('tokenizer_config.json', '{"eos_token": "</s>"}', "eos_token '</s>' is no token"),
        ('tokenizer_config.json', '[' * 99_999, 'tokenizer_config.json is no JSON'),
        ('config.json', '{"eos_token_id": 4000}', 'eos_token_id of config.json is 4000'),
        ('config.json', '{"eos_token_id": true}', 'eos_token_id of config.json is True'),
        ('chat_template.jinja', '\udcff', 'chat_template.jinja is no text'),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    folder = make_tokenizer(tmp_path)
    (folder / name).write_text(content or '', errors='surrogateescape')
    if content is None:
        (folder / name).unlink()
    with pytest.raises(UserError, match=message) as error:
        vocabulary_at(str(folder))
    assert str(error.value).startswith(f"vocabulary '{folder}': ")


def test_seqio_takes_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='no vocabulary of SeqIO, whose id 0 is padding'):
        vocabulary_at(str(make_tokenizer(tmp_path))).for_seqio()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    data = JsonShardsInput(
        batch_size=1, sequence_length=6, vocabulary=str(make_tokenizer(tmp_path)), paths=['a']
    )
    model = TransformerLm(Embedding(100, 8), Stack([]))
    task = LanguageModelTask(model=model, learner=Learner(0.1))
    size = vocabulary_at(str(tmp_path)).vocab_size
    message = f'vocabulary has {size} ids, but task.model.embedding.vocab_size is 100'
    with pytest.raises(UserError, match=message):
        task.check_input(data)
