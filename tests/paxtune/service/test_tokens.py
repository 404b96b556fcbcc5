"""Tokens: files, roles, prefixes, and the one of a user."""

import pytest

from paxtune.service import tokens
from paxtune.service.schema import Role
from paxtune.service.tokens import Token
from trainer.symbolic.errors import UserError

SECRET = 'a-secret-of-the-tests'


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.delenv('PAXTUNE_TOKEN', raising=False)
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    return tmp_path / 'state'


@pytest.mark.parametrize(
    'text',
    ['', '# none', 'short', 'with spaces in between of it', 'x' * 20 + '\n\ny']
    + [f'{SECRET} {rest}' for rest in ('owner', 'read x/y/z', 'work a b', 'alice- work')],
)
def test_invalid_tokens(text, tmp_path, monkeypatch):
    (tmp_path / 'token').write_text(text)
    with pytest.raises(UserError, match=r'--token_file=.*at least 16 .*read, work or admin'):
        tokens.given(tmp_path / 'token')
    monkeypatch.setenv('PAXTUNE_TOKEN', text)
    with pytest.raises(UserError, match='PAXTUNE_TOKEN'):
        tokens.given(None)


def test_the_token_of_the_file_comes_first(tmp_path, monkeypatch):
    assert tokens.secret(None) is None
    monkeypatch.setenv('PAXTUNE_TOKEN', 'of-the-environment')
    (tmp_path / 'token').write_text('of-the-file-itself\n')
    assert tokens.secret(tmp_path / 'token') == 'of-the-file-itself'
    assert tokens.secret(None) == 'of-the-environment'


def test_a_file_of_several_tokens_is_for_the_service(tmp_path):
    file = tmp_path / 'tokens'
    file.write_text(f'# The team\n{SECRET}1\n\n{SECRET}2 read\n{SECRET}3\twork  alice-\n')
    assert tokens.given(file) == (
        Token(f'{SECRET}1', Role.ADMIN),
        Token(f'{SECRET}2', Role.READ),
        Token(f'{SECRET}3', Role.WORK, 'alice-'),
    )
    with pytest.raises(UserError, match='expected one token, not 3'):
        tokens.secret(file)


def test_the_token_of_a_user_is_theirs_alone(state):
    assert tokens.local_secret(8470) is None
    path = tokens.keep_local(8470, SECRET)
    assert path.is_relative_to(state)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(path.parent.iterdir()) == [path]
    assert tokens.local_secret(8470) == SECRET
    assert tokens.local_secret(8471) is None
    path.chmod(0o644)  # Others may have read it.
    assert tokens.local_secret(8470) is None


def test_without_a_place_for_the_token_of_a_user_a_message_names_the_flags(state):
    state.write_text('a file')
    with pytest.raises(UserError, match=r'cannot be kept: .*--token_file, or --insecure'):
        tokens.keep_local(8470, SECRET)
