"""Chat templates: the texts of `transformers`, parts that are answers, and hostile templates."""

from typing import Any

import pytest

from trainer.inputs.finetuning.chat_template import ChatTemplate, Part
from trainer.symbolic.errors import UserError

ASK, SAY = {'role': 'user', 'content': 'hi '}, {'role': 'assistant', 'content': 'yo'}
CHATML = """{{ bos_token }}{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}
    {%- endif %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
MARKED = """{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}
{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{% endfor %}{{ strftime_now('%d %b %Y') }}"""


def test_answers_are_what_comes_after_the_messages_before_them() -> None:
    head = '<s><|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n'
    parts = ChatTemplate(CHATML, {'bos_token': '<s>'}).parts([ASK, SAY, ASK, SAY])
    assert parts == [
        Part(f'{head}<|im_start|>assistant\n', False),
        Part('yo<|im_end|>\n', True),
        Part('<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n', False),
        Part('yo<|im_end|>\n', True),
    ]
    later = ChatTemplate(CHATML).parts([ASK, SAY, ASK, SAY], first=2)
    assert [part.is_answer for part in later] == [False, True]


def test_answers_are_the_blocks_that_a_template_marks() -> None:
    parts = ChatTemplate(MARKED).parts([ASK, SAY, ASK, SAY])
    assert [part.text for part in parts if part.is_answer] == ['yo</s>', 'yo</s>']
    assert ''.join(part.text for part in parts) == ChatTemplate(MARKED).rendered([ASK, SAY] * 2)
    later = ChatTemplate(MARKED).parts([ASK, SAY, ASK, SAY], first=2)
    assert [part.text for part in later if part.is_answer] == ['yo</s>']


def test_the_day_of_a_template_is_fixed() -> None:
    assert ChatTemplate(MARKED, date='2026-01-31').rendered([ASK]).endswith('31 Jan 2026')


def test_a_template_that_changes_earlier_turns_is_refused() -> None:
    source = '{% for m in messages %}{{ m.content if loop.last else "…" }}{% endfor %}'
    with pytest.raises(UserError, match=r'renders message 2 differently .*\{% generation %\}'):
        ChatTemplate(source).parts([ASK, SAY, ASK, SAY])


_GROW = '{% set ns = namespace(x=["a"], n=3, s="a") %}{% for i in range(60) %}{% set ns.VALUE %}'

_MANY = '{% set x = range(99999) %}{% for i in range(999) %}{{ VALUE }}{% endfor %}'


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        ("{{ ''.__class__.__mro__ }}", 'SecurityError'),
        ('{{ messages.__init__.__globals__ }}', 'SecurityError'),
        ("{{ messages | attr('__class__') }}", 'No filter named'),
        ('{{ namespace.__init__.__globals__ }}', 'SecurityError'),
        ("{% include '/etc/passwd' %}", 'no loader'),
        ('{{ messages.append(1) }}', 'SecurityError'),
        ("{{ '{:1000000000}'.format(1) }}", 'not allowed'),
        ("{{ '%1000000000d' % 1 }}", 'not allowed'),
        ("{{ 'a'.ljust(10000000000) }}", 'not allowed'),
        ("{{ 'a' * 1000000000000 }}", 'more than the limit'),
        ('{{ 9 ** 999999999 }}', 'too large'),
        ('{{ range(1000000000) }}', 'Range too big'),
        ('{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}', 'loops'),
        ('{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}', 'recursive loops'),
        ('{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(9) }}', 'recursion'),
        (
            '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}'
            '{{ f(60) }}',
            'more than the limit',
        ),
        (_GROW.replace('VALUE', 's = ns.s ~ ns.s') + '{% endfor %}', 'more than the limit'),
        (_GROW.replace('VALUE', 's = ns.s + ns.s') + '{% endfor %}', 'more than the limit'),
        (_GROW.replace('VALUE', 's = [ns.s, ns.s] | join') + '{% endfor %}', 'more than the limit'),
        (_GROW.replace('VALUE', "s = ns.s.replace('a', 'aa')") + '{% endfor %}', 'more than'),
        (_GROW.replace('VALUE', 'x = [ns.x, ns.x]') + '{% endfor %}{{ ns.x }}', 'more than'),
        (_GROW.replace('VALUE', 'x = [ns.x, ns.x]') + '{% endfor %}{{ ns.x | tojson }}', 'more'),
        (_GROW.replace('VALUE', 'n = ns.n * ns.n') + '{% endfor %}', 'too large'),
        (_GROW.replace('VALUE', 'x = [ns.x, ns.x]') + '{% endfor %}{{ [ns.x] | sort }}', 'more'),
        (_GROW.replace('VALUE', 'x = [ns.x, ns.x]') + '{% endfor %}{{ ns.x == [1] }}', 'more'),
        (_MANY.replace('VALUE', 'x | max'), 'more than the limit'),
        (_MANY.replace('VALUE', '-1 in x'), 'more than the limit'),
        (_MANY.replace('VALUE', '-1 is in x'), 'more than the limit'),
        (_MANY.replace('VALUE', "[-1] | select('in', x) | list"), 'more than the limit'),
        ('{% if %}', 'TemplateSyntaxError'),
        ("{{ raise_exception('roles must alternate') }}", 'roles must alternate'),
        ('x' * 600_000, 'more than 500,000 characters'),
    ],
)
def test_templates_with_code_or_endless_work_are_refused(source: str, message: str) -> None:
    with pytest.raises(UserError, match=f'^its chat template fails .*{message}'):
        ChatTemplate(source, max_work=2_000_000).rendered([ASK, SAY])


def test_filters_and_methods_of_templates_in_use() -> None:
    tools: Any = {'role': 'tool', 'content': 'a\nb', 'x': {'é': 1}}
    source = (
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
        '{{ messages[-1].x | tojson(indent=2) }}{{ messages[-1].content | indent(2) }}'
        "{{ messages[-1].content.split('\n')[-1] }}{{ 'a' in messages[-1].content }}"
        "{% set parts = [] %}{{ ', '.join(['a', 'b']) }}{{ messages | length }}"
        '{% for k, v in messages[-1].x.items() %}{{ k ~ v }}{% endfor %}'
        '{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ loop.index }}{% endfor %}'
    )
    wanted = '[\'hi \']{\n  "é": 1\n}a\n  bbTruea, b2é112'
    assert ChatTemplate(source).rendered([ASK, tools]) == wanted
