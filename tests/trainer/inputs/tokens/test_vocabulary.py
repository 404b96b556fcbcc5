import numpy as np
import pytest

from tests.factories.c4_data import documents, make_sentencepiece_model
from trainer.inputs.tokens.vocabulary import ByteVocabulary, vocabulary_at
from trainer.symbolic.errors import UserError


def test_bytes():
    vocabulary = vocabulary_at('')
    assert vocabulary.vocab_size == 259
    assert vocabulary.encode('aü').tolist() == [ord('a') + 3, 0xC3 + 3, 0xBC + 3]
    assert vocabulary.encode('aü').dtype == np.int32
    assert vocabulary.bytes_per_id.tolist() == [0, 0, 0] + [1] * 256


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert ByteVocabulary().encode('\ud800').tolist() == [ord('?') + 3]


def test_bytes_per_piece_add_up_to_the_text(tmp_path):
    vocabulary = vocabulary_at(str(make_sentencepiece_model(tmp_path / 'm.model')))
    assert 260 < vocabulary.vocab_size <= 400
    assert vocabulary.bytes_per_id.shape == (vocabulary.vocab_size,)
    assert vocabulary.bytes_per_id[[0, vocabulary.eos_id]].tolist() == [0, 0]
    for text in (*documents(20, seed=5)[:-1], 'unseen: ☃ жук'):
        # The model adds a space at the beginning and merges repeated spaces.
        normalized = ' ' + ' '.join(text.split())
        size = vocabulary.bytes_per_id[vocabulary.encode(text)].sum()
        assert size == len(normalized.encode())


def test_a_model_is_named_by_its_content(tmp_path):
    first = make_sentencepiece_model(tmp_path / 'a.model')
    second = tmp_path / 'b.model'
    second.write_bytes(first.read_bytes())
    other = make_sentencepiece_model(tmp_path / 'c.model', documents(50, seed=9))
    names = [vocabulary_at(str(path)).fingerprint for path in (first, second, other)]
    assert names[0] == names[1] != names[2]


def test_invalid_models_are_refused(tmp_path):
    import sentencepiece

    with pytest.raises(UserError, match='cannot be read'):
        vocabulary_at(str(tmp_path / 'missing.model'))
    (tmp_path / 'text.model').write_text('not a model')
    with pytest.raises(UserError, match='not a SentencePiece model'):
        vocabulary_at(str(tmp_path / 'text.model'))
    # SentencePiece's own default: 0 is the unknown piece, and nothing is padding.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents(50)),
        model_prefix=str(tmp_path / 'default'),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(UserError, match=r'padding id is -1.*--pad_id=0'):
        vocabulary_at(str(tmp_path / 'default.model'))
