"""Says which test runs the code of each page of the documentation: the only list of it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]

_TESTED = {
    'tests/test_architecture_search.py': ['docs/architecture-search.md'],
    'tests/test_dependencies.py': ['docs/dependencies.md'],
    'tests/test_extending.py': ['docs/extending/*.md'],
    'tests/test_guide.py': ['docs/tuning/*.md', 'docs/distributed.md'],
    'tests/test_performance.py': ['docs/performance.md'],
    'tests/test_readme.py': ['README.md'],
    'tests/test_repository.py': ['CONTRIBUTING.md'],
    'tests/test_training.py': ['docs/training.md'],
    'tests/test_tutorials.py': [
        'docs/how-a-search-works.md',
        'docs/quick-start.md',
        'docs/tutorials/*.md',
    ],
}


def pages_of(test: str) -> list[Path]:
    """Returns the pages whose code a test module runs; it takes them from here."""
    name = Path(test).relative_to(ROOT).as_posix()
    return sorted(path for pattern in _TESTED[name] for path in ROOT.glob(pattern))


def modules_testing(page: Path) -> list[Path]:
    """Returns the test modules that run the code of a page."""
    return [ROOT / test for test in _TESTED if page in pages_of(str(ROOT / test))]
