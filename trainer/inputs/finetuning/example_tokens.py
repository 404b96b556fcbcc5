import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer.inputs.finetuning.chat_template import ChatTemplate, Messages, Part
from trainer.inputs.tokens.base import Vocabulary
from trainer.symbolic.errors import UserError, shortened

_ROLES = ('system', 'developer', 'user', 'assistant', 'tool')


class ExampleTokens(NamedTuple):
    """The tokens of an example.

    Attributes:
        ids: int32 [N], the tokens before the first text included.
        is_answer: bool [N], True for tokens that a model shall learn to write.
    """

    ids: np.ndarray
    is_answer: np.ndarray


@dataclasses.dataclass(frozen=True)
class ExampleEncoder:
    """Turns an example into tokens, with a mask of its answers.

    A pair has a prompt and an answer. Both are texts, or both are lists of messages. Texts follow
    each other, after the vocabulary's prefix, and before its end. A conversation has `messages`;
    a chat template makes its text, and each message of the assistant is an answer, up to the token
    that ends it.

    Attributes:
        vocabulary: makes ids of text.
        template: makes a text of messages; None where examples are texts.
        as_chat: texts of a pair are messages of the user and of the assistant.
        prompt: the field of an example that has the prompt.
        answer: the field that has the answer.
        messages: the field that has a conversation.

    Example:
        >>> from trainer.inputs import ByteVocabulary
        >>> encoder = ExampleEncoder(ByteVocabulary())
        >>> tokens = encoder.encoded({'prompt': 'ab', 'answer': 'c'})
        >>> tokens.ids.tolist(), tokens.is_answer.tolist()
        ([0, 100, 101, 102, 1], [False, False, False, True, True])
    """

    vocabulary: Vocabulary
    template: ChatTemplate | None = None
    as_chat: bool = False
    prompt: str = 'prompt'
    answer: str = 'answer'
    messages: str = 'messages'

    def encoded(self, example: Mapping[str, Any]) -> ExampleTokens:
        """The tokens of a pair or a conversation.

        Raises:
            UserError: the example lacks a field, has an empty answer, or its roles are out of
                order; or the chat template fails.
        """
        if self.messages in example:
            return self._conversation(_messages(example[self.messages], self.messages))
        if self.prompt not in example or self.answer not in example:
            raise UserError(
                f'it has neither {self.messages!r} nor {self.prompt!r} and {self.answer!r}, but '
                f'{shortened(str(sorted(example)), 200)}'
            )
        return self.pair(example[self.prompt], example[self.answer])

    def pair(self, prompt: Any, answer: Any) -> ExampleTokens:
        """The tokens of a prompt and its answer; raises UserError as `encoded`."""
        for name, value in ((self.prompt, prompt), (self.answer, answer)):
            if not isinstance(value, str | list | tuple):
                raise UserError(f'{name!r} is no text and no list of messages: {_short(value)}')
        if isinstance(prompt, str) and isinstance(answer, str) and not self.as_chat:
            if not answer.strip():
                raise UserError(f'{self.answer!r} is empty')
            return self._tokens([Part(prompt, False), Part(answer, True)], is_complete=False)
        if isinstance(prompt, str):
            prompt = [{'role': 'user', 'content': prompt}]
        if isinstance(answer, str):
            answer = [{'role': 'assistant', 'content': answer}]
        before = [*_messages(prompt, self.prompt, has_answer=False)]
        return self._conversation(_messages([*before, *answer], self.answer), len(before))

    def _conversation(self, messages: Messages, first: int = 0) -> ExampleTokens:
        if self.template is None:
            raise UserError(
                'it has messages, but there is no chat template: set `vocabulary` to a directory '
                'with one, or `chat_template` to a file'
            )
        parts = self.template.parts(messages, first)
        if not any(part.is_answer for part in parts):
            raise UserError('its chat template writes no answer')
        return self._tokens(parts, is_complete=True)

    def _tokens(self, parts: Sequence[Part], is_complete: bool) -> ExampleTokens:
        """The tokens of the parts of a text; one that is not complete lacks its special tokens."""
        encoded = self.vocabulary.encode_parts([part.text for part in parts])
        masks = [
            np.full(len(ids), part.is_answer) for ids, part in zip(encoded, parts, strict=True)
        ]
        if is_complete:
            masks = [
                mask & _until_end(ids, self.vocabulary.eos_ids)
                for ids, mask in zip(encoded, masks, strict=True)
            ]
        else:
            prefix = self.vocabulary.prefix
            encoded = [np.array(prefix), *encoded, np.array([self.vocabulary.eos_id])]
            masks = [np.zeros(len(prefix), bool), *masks, np.array([True])]
        return ExampleTokens(np.concatenate(encoded).astype(np.int32), np.concatenate(masks))


def _until_end(ids: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    """True up to the last token that ends a text, or everywhere without one."""
    found = np.flatnonzero(np.isin(ids, list(ends)))
    return np.arange(len(ids)) <= (found[-1] if found.size else len(ids))


def _messages(found: Any, field: str, has_answer: bool = True) -> Messages:
    """Checks a conversation; raises UserError with the number of the message."""
    if not isinstance(found, list | tuple) or not found:
        raise UserError(f'{field!r} is no list of messages: {_short(found)}')
    before = ''
    for number, message in enumerate(found, 1):
        where = f'message {number} of {field!r}'
        if not isinstance(message, Mapping) or not isinstance(message.get('role'), str):
            raise UserError(f'{where} has no role: {_short(message)}')
        role, content = message['role'], message.get('content')
        if role not in _ROLES:
            raise UserError(f'{where} has the role {_short(role)}, expected one of {_ROLES}')
        if role == 'assistant' and before in ('', 'system', 'developer', 'assistant'):
            raise UserError(f'{where}: the assistant answers no message of the user')
        if role in ('system', 'developer') and before:
            raise UserError(f'{where}: a message of the {role} comes first')
        is_empty = not content.strip() if isinstance(content, str) else content in (None, [], ())
        if role == 'assistant' and is_empty and not message.get('tool_calls'):
            raise UserError(f'{where}: the answer is empty')
        if not isinstance(content, str | list | tuple) and (role != 'assistant' or not is_empty):
            raise UserError(f'{where} has no content: {_short(message)}')
        before = role
    if has_answer and all(message['role'] != 'assistant' for message in found):
        raise UserError(f'{field!r} has no message of the assistant')
    return found


def _short(value: Any) -> str:
    return shortened(repr(value), 100)
