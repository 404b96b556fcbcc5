import datetime
import functools
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainer.symbolic import extras
from trainer.symbolic.errors import UserError, shortened

Messages = Sequence[Mapping[str, Any]]
"""A conversation: the `role` of each message, such as `user`, and its `content`."""

DATE = '2024-07-26'
"""The day that `strftime_now` prints. Llama's templates print it where there is no function."""

_MAX_WORK = 20_000_000


class Part(NamedTuple):
    """A part of a text.

    Attributes:
        text: its characters.
        is_answer: a model shall learn to write it.
    """

    text: str
    is_answer: bool


class ChatTemplate:
    """A Jinja template of conversations, as Hugging Face directories have it.

    It is rendered in a sandbox with limits: nothing of Python, no files, and no endless loops. The
    day of `strftime_now` is fixed, so that examples are the same each day.

    Example:
        >>> source = '{% for m in messages %}[{{ m.role }}]{{ m.content }}\\n{% endfor %}'
        >>> source += '{% if add_generation_prompt %}[assistant]{% endif %}'
        >>> question = {'role': 'user', 'content': '1 + 1'}
        >>> answer = {'role': 'assistant', 'content': '2'}
        >>> ChatTemplate(source).rendered([question], add_generation_prompt=True)
        '[user]1 + 1\\n[assistant]'
        >>> [tuple(part) for part in ChatTemplate(source).parts([question, answer])]
        [('[user]1 + 1\\n[assistant]', False), ('2\\n', True)]
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        date: str = DATE,
        max_work: int = _MAX_WORK,
    ) -> None:
        """Makes a template.

        Args:
            source: Jinja.
            special_tokens: texts of tokens by name, such as `bos_token`.
            date: the day that `strftime_now` prints, as `2024-07-26`.
            max_work: characters that a rendering may write; a round of a loop counts as 500.
        """
        self.source, self._special_tokens = source, dict(special_tokens or {})
        self._today, self._max_work = datetime.date.fromisoformat(date), max_work

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        tokens = tuple(sorted(self._special_tokens.items()))
        return self.source, tokens, self._today, self._max_work

    @functools.cached_property
    def _sandbox(self) -> Any:
        with extras.needed('huggingface', 'a chat template'):
            return importlib.import_module('trainer.inputs.finetuning.sandbox')

    @functools.cached_property
    def _environment(self) -> Any:
        return self._sandbox.Sandbox(self._max_work, self._today)

    def rendered(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        """The text of a conversation.

        Args:
            messages: the conversation.
            add_generation_prompt: ends with the beginning of an answer.

        Raises:
            UserError: the template is not valid, not allowed, too large, or refuses the messages.
        """
        text = self._marked(messages, add_generation_prompt)
        return text.replace(self._sandbox.BEGIN, '').replace(self._sandbox.END, '')

    def parts(self, messages: Messages, first: int = 0) -> list[Part]:
        """The text of a conversation in parts, of which the messages of the assistant are answers.

        An answer lies between `{% generation %}` and `{% endgeneration %}`. In a template without
        them, it is the text that comes after the text of the messages before it.

        Args:
            messages: the conversation.
            first: messages before this number are no answers.

        Raises:
            UserError: as `rendered`; or the text of the first messages is not the beginning of the
                whole text.
        """
        marked = self._marked(messages, False)
        if self._sandbox.BEGIN in marked:
            return self._by_marks(messages, marked, first)
        parts, at = [], 0
        for number, message in enumerate(messages):
            if message['role'] != 'assistant' or number < first:
                continue
            begin = self._marked(messages[:number], True)
            end = self._marked(messages[: number + 1], False)
            if not (end.startswith(begin) and marked.startswith(end)):
                raise UserError(
                    f'its chat template renders message {number + 1} differently in the whole '
                    'conversation: put {% generation %} and {% endgeneration %} around answers in '
                    'the template, or make each answer the last of its own example'
                )
            parts += [Part(marked[at : len(begin)], False), Part(end[len(begin) :], True)]
            at = len(end)
        return [part for part in [*parts, Part(marked[at:], False)] if part.text]

    def _by_marks(self, messages: Messages, marked: str, first: int) -> list[Part]:
        begin, end = self._sandbox.BEGIN, self._sandbox.END
        earlier = self._marked(messages[:first], False).count(begin) if first else 0
        head, *others = marked.split(begin)
        parts = [Part(head, False)]
        for number, other in enumerate(others):
            answer, _, rest = other.partition(end)
            parts += [Part(answer, number >= earlier), Part(rest, False)]
        return [part for part in parts if part.text]

    def _marked(self, messages: Messages, add_generation_prompt: bool) -> str:
        content = json.dumps(list(messages), ensure_ascii=False, default=str)
        if self._sandbox.BEGIN in content or self._sandbox.END in content:
            raise UserError('its messages have U+FDD0 or U+FDD1, which are no characters')
        variables = {
            **self._special_tokens,
            'messages': [dict(each) for each in messages],
            'add_generation_prompt': add_generation_prompt,
            'tools': None,
            'documents': None,
        }
        try:
            return str(self._environment.rendered(self.source, variables))
        # Expressions of a template raise any error.
        except Exception as error:
            reason = shortened(' '.join(str(error).split()), max_length=300)
            raise UserError(
                f'its chat template fails ({type(error).__name__}: {reason})'
            ) from error
