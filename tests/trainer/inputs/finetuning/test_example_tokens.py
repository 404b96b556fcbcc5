"""Tokens of pairs and conversations, with the mask of their answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.factories.tokenizer_files import BEGIN, END, make_tokenizer
from trainer.inputs import ByteVocabulary
from trainer.inputs.finetuning.chat_template import ChatTemplate
from trainer.inputs.finetuning.example_tokens import ExampleEncoder, ExampleTokens
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.symbolic.errors import UserError

TEMPLATE = (
    '{% for m in messages %}<s>{{ m.role }}: {{ m.content }}<|end|>\n{% endfor %}'
    '{% if add_generation_prompt %}<s>assistant: {% endif %}'
)


def ask(content: Any, role: str = 'user') -> dict[str, Any]:
    return {'role': role, 'content': content}


def say(content: Any) -> dict[str, Any]:
    return ask(content, 'assistant')


def encoder(folder: Path, **fields: Any) -> ExampleEncoder:
    return ExampleEncoder(vocabulary_at(str(folder)), ChatTemplate(TEMPLATE), **fields)


def texts(folder: Path, tokens: ExampleTokens) -> tuple[str, str]:
    """The whole text, and that of the answers, with special tokens."""
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    found = [tokens.ids, tokens.ids[tokens.is_answer]]
    whole, answers = (library.decode(ids.tolist(), skip_special_tokens=False) for ids in found)
    return whole, answers


def test_a_pair_of_texts_ends_with_the_end_and_begins_as_the_tokenizer_begins(
    tmp_path: Path,
) -> None:
    pair = {'prompt': 'a question', 'answer': ' the answer'}
    plain = make_tokenizer(tmp_path / 'plain')
    whole = f'a question the answer{END}'
    assert texts(plain, encoder(plain).encoded(pair)) == (whole, f' the answer{END}')
    adds = make_tokenizer(tmp_path / 'adds', adds_bos=True)
    assert texts(adds, encoder(adds).encoded(pair)) == (BEGIN + whole, f' the answer{END}')


def test_prompts_have_the_ids_that_they_have_alone(tmp_path: Path) -> None:
    # "hello" is one token, which a prompt that ends within it does not have.
    vocabulary = vocabulary_at(str(make_tokenizer(tmp_path)))
    tokens = ExampleEncoder(vocabulary).pair('a hel', 'lo')
    assert tokens.ids[~tokens.is_answer].tolist() == vocabulary.encode('a hel').tolist()
    # Llama 2's puts a space before each text, but not before its second part.
    vocabulary = vocabulary_at(str(make_tokenizer(tmp_path / 'pieces', 'pieces')))
    tokens = ExampleEncoder(vocabulary).pair('the question', ' a b')
    assert tokens.ids[:-1].tolist() == vocabulary.encode('the question a b').tolist()


def test_all_answers_of_a_conversation_count_up_to_their_ends(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    messages = [ask('hello'), say('world'), ask('again'), say('the answer')]
    whole, answers = texts(folder, encoder(folder).encoded({'messages': messages}))
    assert whole == ChatTemplate(TEMPLATE).rendered(messages)
    assert answers == f'world{END}the answer{END}'
    pair = {'prompt': messages[:3], 'answer': messages[3:]}
    assert texts(folder, encoder(folder).encoded(pair)) == (whole, f'the answer{END}')
    named = encoder(folder, as_chat=True, prompt='q', answer='a')
    whole, answers = texts(folder, named.encoded({'q': 'hello', 'a': 'world'}))
    assert whole == ChatTemplate(TEMPLATE).rendered(messages[:2])
    assert answers == f'world{END}'


def test_bytes_take_a_template_too() -> None:
    tokens = ExampleEncoder(ByteVocabulary(), ChatTemplate(TEMPLATE)).encoded(
        {'messages': [ask('a'), say('b')]}
    )
    assert ByteVocabulary().decode(tokens.ids[tokens.is_answer]) == 'b<|end|>\n'
    assert tokens.ids.dtype == np.int32


@pytest.mark.parametrize(
    ('example', 'message'),
    [
        ({'text': 'a'}, r"neither 'messages' nor 'prompt' and 'answer', but \['text'\]"),
        ({'prompt': 'a', 'answer': ' \n'}, "'answer' is empty"),
        ({'prompt': 3, 'answer': 'a'}, "'prompt' is no text and no list of messages: 3"),
        ({'messages': []}, "'messages' is no list of messages"),
        ({'messages': ['a']}, "message 1 of 'messages' has no role: 'a'"),
        ({'messages': [ask('a', 'bot')]}, "has the role 'bot', expected one of"),
        ({'messages': [say('a')]}, 'message 1 of .* answers no message of the user'),
        ({'messages': [ask('a'), say('b'), say('c')]}, 'message 3 of .* answers no message'),
        ({'messages': [ask('a'), ask('b', 'system'), say('c')]}, 'message 2 .* comes first'),
        ({'messages': [ask('a'), say('')]}, "message 2 of 'messages': the answer is empty"),
        ({'messages': [ask('a'), say(' ')]}, "message 2 of 'messages': the answer is empty"),
        ({'messages': [ask('a'), say(3)]}, "message 2 of 'messages' has no content"),
        ({'messages': [ask('a')]}, 'has no message of the assistant'),
        ({'messages': [{'role': 'user'}, say('a')]}, "message 1 of 'messages' has no content"),
    ],
)
def test_examples_without_an_answer_to_learn_are_refused(example: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ExampleEncoder(ByteVocabulary(), ChatTemplate(TEMPLATE)).encoded(example)


@pytest.mark.parametrize('template', ["{{ '' }}", 'the same for all'])
def test_a_template_that_writes_no_answer_is_refused(template: str) -> None:
    encoder = ExampleEncoder(ByteVocabulary(), ChatTemplate(template))
    with pytest.raises(UserError, match='its chat template writes no answer'):
        encoder.encoded({'messages': [ask('a'), say('b')]})


def test_messages_need_a_template() -> None:
    with pytest.raises(UserError, match='there is no chat template: set `vocabulary`'):
        ExampleEncoder(ByteVocabulary()).encoded({'messages': [ask('a'), say('b')]})
