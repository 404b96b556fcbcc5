"""Names of `--exp`."""

import textwrap
from collections.abc import Iterator

import pytest

from trainer.symbolic import registry
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


class Part(Component):
    size: int = 1


class Job(Component):
    left: Part = Part()
    right: Part = Part()


@pytest.fixture(scope='module', autouse=True)
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package of experiments next to a module of one's own, one of them broken."""
    root = tmp_path_factory.mktemp('spaces')
    head = f'from {__name__} import Job, Part\n'
    files = {
        'tuned/__init__.py': '',
        'tuned/lm.py': head
        + textwrap.dedent("""
            class Small(Job):
                pass

            class Needs(Job):
                depth: int

            class NoJob(Part):
                pass

            INSTANCE = Small()

            def shared() -> Job:
                part = Part(3)
                return Job(part, part)

            def needs(depth) -> Job:
                return Job()

            def fails() -> Job:
                raise ZeroDivisionError('inside')

            def _private() -> Job:
                return Job()
            """),
        'tuned/deep/__init__.py': '',
        'tuned/deep/vision.py': head + 'class Wide(Job):\n    pass\n',
        'tuned/broken.py': 'import no_such_library\n',
        'own_experiments.py': head
        + 'class Mine(Job):\n    pass\n\ndef plain():\n    return Job()\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        yield


def find(name: str) -> Job:
    return registry.find(name, Job, package='tuned')


@pytest.mark.pax('--exp', 'Registry: names, partial')
@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        ('lm.Small', 'Small'),
        ('tuned.lm.Small', 'Small'),
        ('lm.shared', 'Job'),
        ('lm.INSTANCE', 'Small'),
        ('deep.vision.Wide', 'Wide'),
        ('own_experiments.Mine', 'Mine'),
    ],
)
def test_find(name: str, kind: str) -> None:
    assert type(find(name)).__name__ == kind


def test_an_object_in_two_places_becomes_two() -> None:
    job = find('lm.shared')
    assert job.left is not job.right
    job.left.rebind(size=5)
    assert job.right.size == 3


def test_each_call_makes_its_own() -> None:
    find('lm.INSTANCE').left.rebind(size=5)
    assert find('lm.INSTANCE').left.size == 1


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('lm.Smal', r'the module tuned\.lm has no Smal\. Did you mean Small\?'),
        ('lm.Smal', r'It has: Small, Needs, INSTANCE, shared'),
        ('own_experiments.Mien', r'own_experiments has no Mien\. Did you mean Mine\?'),
        ('own_experiments.Mien', r'It has: Mine, plain\.$'),
        ('Small', r'expected module\.Name\. Did you mean lm\.Small'),
        ('deep.vision.Wid', r'Did you mean Wide\?'),
        ('deep.vision', r'a module: name an experiment in it: deep\.vision\.Wide$'),
        ('ml.Smal', r'tuned has: .*lm\.Small, lm\.Needs, lm\.INSTANCE'),
        ('ml.Smal', r'tuned\.broken \(ModuleNotFoundError: No module named .no_such_library.\)'),
        ('nowhere.to.be.found', r'there is no module nowhere\.to\.be: not in tuned, and not on'),
        ('os.path.join.x', r'there is no module os\.path\.join'),
        ('lm.', 'expected module'),
        ('lm.__init__', 'expected module'),
        ('os.__doc__', 'expected module'),
        ('', 'expected module'),
        ('../lm.Small', 'expected module'),
        ('lm.Needs', 'it needs values for depth'),
        ('lm.needs', 'it needs values for depth'),
        ('lm.NoJob', 'expected a Job, or a function that returns one; this is a NoJob'),
        ('os.getcwd', 'this is a str'),
        ('os.sep', 'this is a str'),
    ],
)
def test_find_refuses(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find(name)


def test_errors_inside_are_named_with_their_line() -> None:
    missing = "^--exp=broken.Thing: ModuleNotFoundError: No module named 'no_such_library' "
    with pytest.raises(UserError, match=rf'{missing}\(.*tuned/broken.py:1\)$'):
        find('broken.Thing')
    inside = r'^--exp=lm.fails: ZeroDivisionError: inside \(.*tuned/lm.py:\d+\)$'
    with pytest.raises(UserError, match=inside):
        find('lm.fails')


def test_available() -> None:
    found, broken = registry.available(Job, 'tuned')
    assert found == [
        'deep.vision.Wide',
        *(f'lm.{n}' for n in ('Small', 'Needs', 'INSTANCE', 'shared', 'needs', 'fails')),
    ]
    assert len(broken) == 1
