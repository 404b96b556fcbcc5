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
    for name, imported in {
        'paxtune/page/one.py': 'plots.two',
        'paxtune/plots/two.py': 'page.one',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f'import paxtune.{imported}\n')
    assert house.problems(tmp_path) == [
        'imports in a circle: paxtune/page/one.py, paxtune/plots/two.py',
        'folders import each other in a circle: paxtune/page, paxtune/plots',
    ]


def test_a_room_above_its_budget_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / 'paxtune' / 'new').mkdir(parents=True)
    (tmp_path / 'paxtune' / 'new' / 'one.py').write_text('x = 1\n' * 3)
    assert house.problems(tmp_path) == ['paxtune/new/: 3 lines; its budget has 0']


def test_a_room_stands_above_those_that_it_imports() -> None:
    graph = {
        'paxtune/a/one.py': {'paxtune/b/two.py', 'trainer/c.py'},
        'paxtune/b/two.py': {'trainer/c.py'},
        'trainer/c.py': set[str](),
    }
    assert house.floors(graph) == [['trainer/c.py'], ['paxtune/b'], ['paxtune/a']]
