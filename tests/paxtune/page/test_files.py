"""The files of a trial on the study page."""

import contextlib
import json
import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from etils import epath
from PIL import Image

from paxtune.page.access import access_rule
from paxtune.page.file_views import view_of
from paxtune.page.live import LiveStudy
from paxtune.page.trial_files import File, files_of, open_file
from paxtune.study.plan import SearchPlan
from paxtune.study.study_view import StudyView
from paxtune.study.trial_paths import trial_directory
from tests.factories.page_searches import (
    HOST,
    SCRIPT,
    SEARCH,
    SPACE,
    call,
    client,
    make_study,
    opened,
)
from trainer.symbolic.errors import UserError

HOSTILE = '<img src=x onerror=alert(1)>\n&.txt'
SECRET = 'a secret'


@pytest.fixture
def study(tmp_path: Path) -> Iterator[LiveStudy]:
    """A study whose first trial has files of each kind."""
    directory = tmp_path / 'study'
    make_study(directory)
    with contextlib.closing(opened(directory)) as live:
        folder = folder_of(live)
        folder.mkdir(parents=True)
        (tmp_path / 'secret.txt').write_text(SECRET)
        (folder / 'report.json').write_text(json.dumps({'b': SCRIPT}))
        (folder / 'table.csv').write_text(f'trial,name\n7,{SCRIPT}\n')
        (folder / 'long.log').write_text('first\n' + 'x' * 70_000 + '\nlast')
        (folder / 'page.html').write_text(SCRIPT)
        (folder / 'drawing.svg').write_text(f'<svg>{SCRIPT}</svg>')
        (folder / 'weights.bin').write_bytes(b'\0\1')
        (folder / HOSTILE).write_text('hostile')
        Image.new('RGB', (8, 8)).save(folder / 'picture.png')
        with wave.open(str(folder / 'sound.wav'), 'wb') as sound:
            sound.setparams((1, 2, 8000, 0, 'NONE', ''))
            sound.writeframes(bytes(800))
        (folder / 'inner').mkdir()
        (folder / 'inner' / 'a b?.txt').write_text('inside')
        yield live


def folder_of(live: LiveStudy, trial: int = 1) -> Path:
    return Path(trial_directory(live.study.directory, live.study.trial(trial)))


def texts_of(made: Any) -> str:
    return json.dumps(made, default=lambda each: each.to_plotly_json())


def test_files_are_listed_with_sizes_upper_folders_first(study: LiveStudy) -> None:
    found = files_of(study.study, 1)
    assert File('weights.bin', 2) in found and found[-1] == File('inner/a b?.txt', 6)
    states = {'url.pathname': '/trial/1'}
    text = call(client(study), 'trial-files.children', {'version.data': ''}, states).text
    assert 'report.json' in text and 'onerror' in text
    other = call(
        client(study), 'trial-files.children', {'version.data': ''}, {'url.pathname': '/trial/2'}
    )
    assert 'The trial has no files here.' in other.text


def test_files_in_long_lists_are_cut_off(study: LiveStudy) -> None:
    assert len(files_of(study.study, 1, most=3)) == 3


def test_files_that_links_lead_to_are_neither_listed_nor_read(
    study: LiveStudy, tmp_path: Path
) -> None:
    folder = folder_of(study)
    (folder / 'link.txt').symlink_to(tmp_path / 'secret.txt')
    (folder / 'up').symlink_to(tmp_path)
    os.mkfifo(folder / 'pipe')
    names = {each.name for each in files_of(study.study, 1)}
    assert not names & {'link.txt', 'up', 'pipe', 'up/secret.txt'}
    page = client(study)
    for name in (
        'link.txt', 'up/secret.txt', 'pipe', 'inner', '../../../secret.txt', '..', '', 'a\0b',
        'inner/../../../../secret.txt', str(tmp_path / 'secret.txt'), '\ud800', 'nothing',
    ):  # fmt: skip
        with pytest.raises(UserError, match='trial 1 has no file'):
            open_file(study.study, 1, name)
        if name.isprintable():
            answer = page.get(f'/files/1?name={name}', base_url=HOST)
            assert answer.status_code == 404 and SECRET not in answer.text
    # The whole folder may be a link, too.
    other = folder_of(study, 2)
    other.symlink_to(tmp_path)
    with pytest.raises(UserError, match='no files here'):
        open_file(study.study, 2, 'secret.txt')
    with pytest.raises(UserError, match='no files here'):
        files_of(study.study, 2)


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('report.json', r'{\n  \"b\": \"<script>'),
        ('table.csv', SCRIPT),
        ('long.log', 'These are the last 65,536 of'),
        ('page.html', SCRIPT),
        ('weights.bin', 'This is no text.'),
        ('picture.png', '"src": "/files/1?name=picture.png"'),
        ('sound.wav', '"controls": true'),
        ('inner/a b?.txt', '"/files/1?name=inner/a%20b%3F.txt"'),
        (HOSTILE, 'hostile'),
    ],
)
def test_files_have_a_viewer_by_kind(study: LiveStudy, name: str, expected: str) -> None:
    text = texts_of(view_of(study, 1, name))
    assert expected in text
    assert ('"Img"' in text) == name.endswith('.png')
    assert 'first' not in text


def test_files_that_are_damaged_are_text(study: LiveStudy) -> None:
    folder = folder_of(study)
    (folder / 'empty.csv').write_text('')
    (folder / 'deep.json').write_text('[' * 100_000)
    (folder / 'half.json').write_text('{"a": ')
    for name in ('empty.csv', 'deep.json', 'half.json'):
        assert '"Pre"' in texts_of(view_of(study, 1, name))


@pytest.mark.parametrize(
    ('name', 'kind', 'disposition'),
    [
        ('picture.png', 'image/png', 'inline'),
        ('sound.wav', 'audio/wav', 'inline'),
        ('drawing.svg', 'application/octet-stream', 'attachment'),
        ('page.html', 'application/octet-stream', 'attachment'),
        ('report.json', 'application/octet-stream', 'attachment'),
        (HOSTILE, 'application/octet-stream', 'attachment'),
    ],
)
def test_files_are_served_as_what_a_browser_does_not_run(
    study: LiveStudy, name: str, kind: str, disposition: str
) -> None:
    answer = client(study).get(f'/files/1?name={quote(name)}', base_url=HOST)
    answer.close()
    assert (answer.status_code, answer.mimetype) == (200, kind)
    assert answer.headers['Content-Disposition'].startswith(disposition)
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'
    assert answer.headers['Content-Security-Policy'] == "default-src 'none'; sandbox"
    missing = client(study).get('/files/9?name=a', base_url=HOST)
    assert missing.status_code == 404 and 'no trial 9' in missing.text


def test_files_need_the_access_of_the_page(study: LiveStudy) -> None:
    page = client(study, access_rule('0.0.0.0', 'secret', False))
    assert page.get('/files/1?name=report.json', base_url=HOST).status_code == 403
    foreign = {'Sec-Fetch-Site': 'cross-site'}
    local = client(study)
    assert local.get('/files/1?name=picture.png', base_url=HOST, headers=foreign).status_code == 403


@pytest.mark.parametrize(
    ('directory', 'message'),
    [
        (None, 'Only the workers'),
        ('gs://bucket/study', 'The files are in gs://bucket/study/trials/'),
    ],
)
def test_files_elsewhere_are_named(study: LiveStudy, directory: Any, message: str) -> None:
    where = epath.Path(directory) if directory else None
    elsewhere = StudyView(where, SearchPlan.compile(SPACE, SEARCH), study.study.store)
    with pytest.raises(UserError, match=message):
        files_of(elsewhere, 1)
