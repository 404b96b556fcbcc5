"""Hook of mkdocs, which adds to the pages of `docs/` what the repository has already.

Pages of `docs/` link to files beside `docs/`, as GitHub shows them. The site has a copy of each
such file. The pages of the API reference are made of the names that the packages export, and of
those that the pages of `docs/` import. Sources are parsed, and nothing is imported.
"""

import ast
import os
import posixpath
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import griffe
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS = ROOT / 'docs'
HOME = ROOT / 'README.md'
FIRST = ('paxtune.tune',)
"""Names that stand first in their page of the API reference."""

PACKAGES = ('paxtune', 'trainer', 'search_spaces')

_LINK = re.compile(r'(\]\()([^)#\s]+)')
_FENCED = re.compile(r'^```.*?^```$', re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r'^```python\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Public(NamedTuple):
    """A public name, and the module that it is imported from."""

    name: str
    module: str


OF_MODULES = ('search_spaces', 'paxtune.analysis', 'paxtune.integrations')
"""Packages whose modules are used by their names."""

IMPORTED = ('paxtune.pyglove_backend',)
"""Packages that users only import: their docstrings say what that does."""

RETURNED = (Public('Trial', 'paxtune.study.trial'),)
"""Names that users meet without an import."""

DOCSTRING = '::: {}\n    options: {{members: false, show_root_heading: false}}\n\n'


def on_config(config: Any) -> None:
    """Links to the repository, and shows the version of the package beside the link."""
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    config.repo_url = project['tool']['hatch']['metadata']['hooks']['custom']['repository']
    config.repo_name = config.repo_url.partition('://')[2].partition('/')[2]
    source = file_of('paxtune').read_text()
    config.extra['release'] = re.findall(r"^__version__ = '(.*)'", source, re.MULTILINE)[0]


def on_files(files: Files, config: Any) -> Files:
    """Adds the front page, the API reference, and copies of the files that pages link to."""
    files.append(File.generated(config, uri(HOME), content=HOME.read_text()))
    pages = [file for file in files.documentation_pages() if file.abs_src_path]
    documents = {Path(str(file.abs_src_path)): file.content_string for file in pages}
    documents[HOME] = HOME.read_text()
    for name, text in reference(documents.values()).items():
        files.append(File.generated(config, f'api/{name}.md', content=text))
    for path, text in linked(documents).items():
        # A copy stands in no menu.
        files.append(
            File.generated(config, uri(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links to files beside `docs/` at their copies."""
    source = source_of(page.file.src_uri)

    def there(link: re.Match[str]) -> str:
        target = target_of(source, link[2])
        if target is None or (source.is_relative_to(DOCS) and target.is_relative_to(DOCS)):
            return link[0]
        return link[1] + posixpath.relpath(uri(target), posixpath.dirname(page.file.src_uri))

    # A link inside of a fenced block is text.
    parts = re.split(f'({_FENCED.pattern})', markdown, flags=_FENCED.flags)
    return ''.join(part if part.startswith('```') else _LINK.sub(there, part) for part in parts)


# Files beside docs/.


def uri(path: Path) -> str:
    """Returns the page of the site that shows a file or a folder of the repository."""
    if path == HOME:
        return 'index.md'
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f'repository/{name}' if path.suffix == '.md' else f'repository/{name}.md'


def source_of(src_uri: str) -> Path:
    """Returns the file of the repository that a page of the site shows."""
    if src_uri == uri(HOME):
        return HOME
    if not src_uri.startswith('repository/'):
        return DOCS / src_uri
    name = src_uri.removeprefix('repository/')
    return ROOT / name if (ROOT / name).exists() else ROOT / name.removesuffix('.md')


def target_of(source: Path, link: str) -> Path | None:
    """Returns the file or folder of the repository that a link means."""
    if '://' in link or link.startswith('mailto:'):
        return None
    target = Path(os.path.normpath(source.parent / link))
    return target if target.exists() and target.is_relative_to(ROOT) else None


def linked(documents: dict[Path, str]) -> dict[Path, str]:
    """Returns the files beside `docs/` that pages link to, and those that these link to."""
    found: dict[Path, str] = {}
    left = [*documents.items()]
    while left:
        source, text = left.pop()
        for link in _LINK.finditer(_FENCED.sub('', text)):
            target = target_of(source, link[2])
            if target is None or target.is_relative_to(DOCS) or target in {HOME, *found}:
                continue
            found[target] = shown(target)
            left.append((target, found[target]))
    return found


def shown(path: Path) -> str:
    """Returns the page of a file: a document as it is, other text as code, a folder as a list."""
    title = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        names = sorted(each.name for each in path.glob('*.py') if each.name != '__init__.py')
        entries = [f'- [{name}]({path.name}/{name})' for name in names]
        return '\n'.join([f'# {title}', '', *entries, ''])
    text = path.read_text()
    if path.suffix == '.md':
        return text
    language = {'.py': 'python', '.sh': 'sh', '.toml': 'toml'}.get(path.suffix, 'text')
    return f'# {title}\n\n````{language}\n{text}````\n'


# The API reference.


def reference(documents: Iterable[str]) -> dict[str, str]:
    """Returns the pages of the API reference by their names."""
    public = {name: exports(name) for name in packages()}
    known = {f'{each.module}.{each.name}' for found in public.values() for each in found}
    rest = [
        each
        for each in imported(documents)
        if f'{each.module}.{each.name}' not in known and not each.module.startswith(OF_MODULES)
    ]
    pages = {name: page_of_modules(name) for name in OF_MODULES}
    pages |= {name: page_of(name, [], []) for name in IMPORTED}
    for package, found in public.items():
        own = [each for each in rest if each.module.split('.')[0] == package]
        if (found or own) and package not in pages:
            pages[package] = page_of(package, found, own)
    return pages


def packages() -> list[str]:
    """Returns the dotted names of the packages and of their rooms."""
    folders = [each.parent for top in PACKAGES for each in (ROOT / top).rglob('__init__.py')]
    return sorted('.'.join(each.relative_to(ROOT).parts) for each in folders)


def exports(package: str) -> list[Public]:
    """Returns the names that a package exports: `from module import Name as Name`."""
    tree = ast.parse(file_of(package).read_text())
    found = [
        Public(alias.name, node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        # A package that is exported has a page of its own.
        if alias.asname == alias.name and not (ROOT / package / alias.name).is_dir()
    ]
    return sorted(found, key=lambda each: f'{package}.{each.name}' not in FIRST)


def imported(documents: Iterable[str]) -> list[Public]:
    """Returns the names that code in documents imports from modules of the packages."""
    found = {
        Public(alias.name, node.module)
        for text in documents
        for code in _PYTHON.findall(text)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if file_of(node.module).name != '__init__.py'
    }
    return sorted(each for each in {*found, *RETURNED} if each.module.split('.')[0] in PACKAGES)


def file_of(module: str) -> Path:
    """Returns the source of a module or package."""
    path = ROOT.joinpath(*module.split('.'))
    return path / '__init__.py' if path.is_dir() else path.with_suffix('.py')


def page_of(package: str, found: list[Public], rest: list[Public]) -> str:
    """Returns the page of a package: its docstring, its exports by room, and other public names."""
    parts = {f'`{room}`': '' for room in dict.fromkeys(room_of(each.module) for each in found)}
    for each in found:
        parts[f'`{room_of(each.module)}`'] += f'::: {package}.{each.name}\n\n'
    for each in rest:
        parts.setdefault('Other modules', '')
        parts['Other modules'] += f'::: {each.module}.{each.name}\n\n'
    return f'# {package}\n\n{DOCSTRING.format(package)}' + _sections(parts)


def page_of_modules(package: str) -> str:
    """Returns the page of a package whose modules are used by their names."""
    folder = file_of(package).parent
    names = sorted(each.stem for each in folder.glob('*.py') if each.stem != '__init__')
    parts = {f'`{package}.{name}`': f'::: {package}.{name}\n\n' for name in names}
    return f'# {package}\n\n{DOCSTRING.format(package)}' + _sections(parts)


def room_of(module: str) -> str:
    """Returns the folder of a module in its package, or the package."""
    path = '.'.join(module.split('.')[:2])
    return path if file_of(path).name == '__init__.py' else path.split('.')[0]


def _sections(parts: dict[str, str]) -> str:
    return ''.join(f'## {title}\n\n{text}' for title, text in parts.items())


class Examples(griffe.Extension):
    """Makes code of the examples in docstrings; griffe knows only the plural of their heading."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self.on_object(obj=pkg)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r'^( *)Example:$', r'\1Examples:', obj.docstring.value, flags=re.MULTILINE
            )
