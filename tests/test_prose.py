"""`tools/prose.py` finds what breaks the rules of the language."""

from pathlib import Path

import pytest

from tools import prose


def messages(path: Path) -> list[str]:
    return [f'{each.line}: {each.message}' for each in prose.problems(path, path.parent)]


def test_source_problems(tmp_path: Path) -> None:
    (tmp_path / 'module.py').write_text(
        '"""What it is."""\n'
        'told = 1  # The hub\n'
        '# of a study, as `whoever` says,\n'
        '# nobody reads.\n'
        'raise ValueError(f"the value {told} makes no sense")\n'
    )
    assert [
        each.partition(': ')[2].partition(':')[0] for each in messages(tmp_path / 'module.py')
    ] == [
        "a docstring begins with 'What'",
        "'hub'",
        "the name 'told'",
        "'nobody'",
        "'makes no sense'",
    ]


def test_test_names(tmp_path: Path) -> None:
    (tmp_path / 'tests').mkdir()
    path = tmp_path / 'tests' / 'test_module.py'
    path.write_text('def test_what_is_there(): ...\ndef test_module_reads(): ...\n')
    assert [each.line for each in prose.problems(path, tmp_path)] == [1]


@pytest.mark.parametrize(('words', 'found'), [(30, 0), (31, 1)])
def test_document_sentences(words: int, found: int, tmp_path: Path) -> None:
    path = tmp_path / 'guide.md'
    sentence = ' '.join(['word'] * words)
    table = f'| {"word " * 50}|\n'
    path.write_text(f'# Title\n\n- {sentence}.\n- word\n\n```sh\n{"word " * 50}\n```\n\n{table}')
    assert [each.line for each in prose.problems(path, tmp_path)] == [3] * found


def test_example_in_docstring_is_no_sentence(tmp_path: Path) -> None:
    path = tmp_path / 'module.py'
    path.write_text(f'"""Example.\n\n>>> 1\n{"1 " * 40}\n"""\n')
    assert not messages(path)


def test_comments_name_their_thing(tmp_path: Path) -> None:
    path = tmp_path / 'module.py'
    path.write_text(
        'x = 1  # Of a trial.\n\n# It waits for so many seconds.\n'
        '# The cost is that of a step and that of a save.\n'
    )
    assert sorted(each.partition(': ')[2][:20] for each in messages(path)) == [
        '"that of" twice: The',
        "'so many': this numb",
        'a comment begins wit',
    ]


def test_pronouns_have_their_noun(tmp_path: Path) -> None:
    path = tmp_path / 'paxtune' / 'module.py'
    path.parent.mkdir()
    path.write_text(
        '_MOST_STEPS = 2  # One that has ended.\n'
        '"""Those of a curve."""\n\n\n'
        'def read(what: str) -> None:\n'
        '    """Reads what a trial wrote: `$(echo what)`.\n\n'
        '    Args:\n'
        '        what: that of the trial.\n'
        '    """\n'
    )
    assert [each.message.partition(': ')[0] for each in prose.problems(path, tmp_path)] == [
        "a comment begins with 'One that'",
        "the name '_MOST_STEPS'",
        '"that of" without its noun',
        '"that of" without its noun',
        "'what'",
    ]


def test_documents_may_ask_questions(tmp_path: Path) -> None:
    path = tmp_path / 'guide.md'
    path.write_text('## What to run\n')
    assert not messages(path)
