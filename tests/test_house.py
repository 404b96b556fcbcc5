"""`tools/house.py` finds what breaks the rules of the structure."""

from pathlib import Path

from tools import house


def test_long_files_are_problems(tmp_path: Path) -> None:
    for name, length in {
        'paxtune/long.py': house.MAX_LINES + 1,
        'paxtune/short.py': house.MAX_LINES,
        'tests/study/test_long.py': house.MAX_TEST_LINES + 1,
        'tests/test_short.py': house.MAX_TEST_LINES,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('x = 1\n' * length)
    assert house.problems(tmp_path) == [
        f'paxtune/long.py: {house.MAX_LINES + 1} lines; at most {house.MAX_LINES}',
        f'tests/study/test_long.py: {house.MAX_TEST_LINES + 1} lines; '
        f'at most {house.MAX_TEST_LINES}',
    ]


def test_circles_of_folders_are_problems(tmp_path: Path) -> None:
    for name, imported in {'paxtune/a/one.py': 'b.two', 'paxtune/b/two.py': 'a.one'}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f'import paxtune.{imported}\n')
    assert house.problems(tmp_path) == [
        'imports in a circle: paxtune/a/one.py, paxtune/b/two.py',
        'folders import each other in a circle: paxtune/a, paxtune/b',
    ]
