"""Checks of the language: `python -m tools.prose --check [FILE ...]`.

Reads docstrings, comments and messages of the packages, benchmarks and examples; tests; documents.
A docstring starts with a verb or a noun phrase. Words have their field's meaning; `WORDS` maps each
coined word to its replacement. Code in backticks is exempt. Without `--check` it prints a
count for each file, and how many sentences are longer than the `AIM`.
"""

import argparse
import ast
import functools
import inspect
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ('trainer', 'paxtune', 'search_spaces')

AIM = 20
"""Words that a sentence should have at most: longer ones are counted."""

MAX_WORDS = 30
"""Words that a sentence may have: longer ones are problems."""

WORDS = {
    r'nobody|somebody|whoever|whomever|everybody': 'name the process, the user or the component',
    r'(?<!\.)(?:told|tells?|telling)': 'report, print, pass, say',
    r'(?:is|are|was) none of': 'does not belong to, is unknown',
    r'such that': 'so that, with',
    r'as far as': 'if, where, up to',
    r'cannot be had': 'is unavailable',
    r'has not what': 'lacks',
    r'makes? no sense': 'is invalid',
    r'heard': 'received, seen',
    r'hubs?': 'coordinator',
    r'wire': 'schema, protocol',
    r'whereabouts': 'location',
    r'verdicts?': 'decision',
    r'appraisals?|appraised?|appraises': 'cost estimate',
    r'spoilt': 'failed',
    r'hopeless': 'unpromising',
    r'trunks?': 'parent checkpoint',
    r'promises?': 'acquisition value',
    r'beliefs?': 'prior',
    r'whitener': 'inverse Cholesky factor',
    r'mutants?': 'candidate',
    r'afresh': 'from scratch',
    r'hoisted': 'shared',
    r'of ours': 'name the thing',
    r'so many(?! \w+ that)': 'this number of',
}
"""Words that the house does not use, as regular expressions, and the words to use instead."""

NAMES = {
    r'told|Told|Tell|Ask|\w+_told|sown': 'observe, observed, reported, added',
    r'(?:MOST|LEAST)(?:_\w+)?': 'MAX_, MIN_',
    r'heard|said|shown': 'received, message, rendered',
    r'Advancing|NextTrial': 'Scheduler, TrialQueue',
    r'PastTrial': 'Observation',
    r'verdicts?|judge[ds]?': 'decision, should_prune',
    r'Policy|Gated|Passage|gates?|grace': 'Scheduler, milestone, grace_period',
    r'hubs?|wire|whereabouts|InDirectory': 'coordinator, schema, location',
    r'take_turn|presence|Counted|Logged': 'suggest lock, lock file, HeartbeatCallback',
    r'[Rr]unnable|Assignment': 'workload, trial spec',
    r'trunk|branch_off': 'parent checkpoint, fork',
    r'settled?|settle_\w+|refuse_\w+': 'finalize, resolve; validate_…',
    r'appraised?|Appraisal|Picture|Watch|upright': 'cost estimate; snapshot, live view',
    r'is_spoilt|is_whole|unsettled': 'failed, complete, pending',
    r'cross_step|opened_by|hoisted': 'aggregation, condition, shared',
    r'promises?|belief|[Ww]ish|whitener|mutants?': 'acquisition value, prior, context, candidates',
    r'is_there|box_of|from_share|Adapting|jumped|dotted': 'mask, encoding, normalize, drawn, path',
    r'made_once|with_earlier|beat|treated': 'create_once, update_cache, heartbeat, processed',
    r'first_needed|infeed_share|layerwise|bprop_\w+': 'shard_count, per_layer, trainable',
    r'Meetings|Needed|Leaving|telling_where': 'barriers, retention policy, shutdown, error context',
}
"""Names that the code does not define, as regular expressions, and the terms to use instead."""

_QUESTION = re.compile(r'(What|Whatever|Whether|Which|Whichever|Who|Whose|Whom|How)\b')
_ANY_BAD_WORD = re.compile(rf'\b(?:{"|".join(WORDS)})\b', re.IGNORECASE)
_BAD_WORDS = [(re.compile(rf'\b(?:{word})\b', re.IGNORECASE), use) for word, use in WORDS.items()]
_BAD_NAMES = [(re.compile(name), use) for name, use in NAMES.items()]
_ASK_AND_TELL = re.compile(r'\bask(?:[- ]and[- ]|\|)tell\b', re.IGNORECASE)
_BAD_TEST_NAME = re.compile(
    r'test_(?:what|they|who|how|whether|which)_|_(?:told|tells|nobody|somebody|whoever)(?:_|$)'
)
_BAD_COMMENT = re.compile(r'(Of|That|Those|One that) ')
_THAT_OF_TWICE = re.compile(r'\b(?:that|those) of\b.*\b(?:that|those) of\b', re.IGNORECASE)
_THAT_OF_ALONE = re.compile(r':\s+(?:that|those) of\b|^(?:that|those) of\b', re.IGNORECASE)
_WHAT = re.compile(r'(?<!\$\()\bwhat\b(?!:)', re.IGNORECASE)
_CODE = re.compile(r'``.+?``|`[^`]+`', re.DOTALL)
_SENTENCE_END = re.compile(r'(?<=[.!?])[)\'"*_]*\s+(?=[^a-z])')


class Text(NamedTuple):
    """A piece of prose: its kind, the line where it starts, and its words."""

    kind: str
    line: int
    text: str


class Problem(NamedTuple):
    """A place that breaks a rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: {self.message}'


def files(root: Path = ROOT) -> list[Path]:
    """Lists the sources, tests and documents that the rules hold for."""
    folders = (*PACKAGES, 'benchmarks', 'examples', 'tests')
    python = [path for name in folders for path in (root / name).rglob('*.py')]
    return sorted([*python, *root.glob('*.md'), *(root / 'docs').rglob('*.md')])


@functools.cache
def texts(path: Path) -> list[Text]:
    """Reads all prose in a file."""
    source = path.read_text()
    if path.suffix == '.md':
        return list(_document_texts(source))
    tree = ast.parse(source)
    found = [*_docstrings(tree), *_comments(source)]
    return found if 'tests' in path.parts else [*found, *_messages(tree)]


def _docstring_nodes(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yields docstrings, those of attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, 'body', None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def _docstrings(tree: ast.Module) -> Iterator[Text]:
    for node in _docstring_nodes(tree):
        yield Text('docstring', node.lineno, str(node.value).strip())


def _messages(tree: ast.Module) -> Iterator[Text]:
    """Yields the other strings of at least three words."""
    docstrings = set(map(id, _docstring_nodes(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A line of a message is not a line of the source.
            words = node.value.split() if id(node) not in docstrings else []
            if len(words) > 2:
                yield Text('message', node.lineno, ' '.join(words))


def _comments(source: str) -> Iterator[Text]:
    """Yields comments; those on lines of their own that follow each other are one text."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [
        (token.start[0], token.string.lstrip('#: '), token.line.lstrip().startswith('#'))
        for token in tokens
        if token.type == tokenize.COMMENT
    ]
    block: list[str] = []
    first = 0
    for line, text, alone in found:
        if block and not (alone and line == first + len(block)):
            yield Text('comment', first, '\n'.join(block))
            block = []
        first = first if block else line
        block.append(text)
    if block:
        yield Text('comment', first, '\n'.join(block))


def _document_texts(source: str) -> Iterator[Text]:
    """Yields the paragraphs of a Markdown document without its code; a table row is one text."""
    source = re.sub(r'^```.*?^```$', lambda m: '\n' * m[0].count('\n'), source, flags=re.M | re.S)
    source = re.sub(r'\]\([^)]*\)', ']', source)
    paragraph: list[str] = []
    first = 0
    for line, text in enumerate([*source.splitlines(), ''], 1):
        starts = re.match(r'\s*([-*] |\d+\. |\||#)', text)
        if paragraph and (not text.strip() or starts):
            yield Text('document', first, '\n'.join(paragraph))
            paragraph = []
        if text.strip():
            first = first if paragraph else line
            paragraph.append(text)


def sentences(text: Text) -> Iterator[str]:
    """Splits a text into sentences; examples and code are left out, a table has none."""
    if text.text.startswith('|') or text.kind == 'message':
        return
    prose = inspect.cleandoc(text.text) if text.kind == 'docstring' else text.text
    prose = re.sub(r'^ *>>>.*?(?=^\s*$|\Z)', '', prose, flags=re.MULTILINE | re.DOTALL)
    # An indented block is code; an item of a list and an argument stand alone.
    prose = re.sub(r'(?:\A|\n[ \t]*\n)(?: {4}[^\n]*\n?)+(?=\n[ \t]*\n|\n?\Z)', '\n\n', prose)
    prose = _CODE.sub('CODE', prose)
    for paragraph in re.split(r'\n\s*\n|\n(?=\s*[-*] |\s*\w+: )', prose):
        if not paragraph.lstrip().startswith('|'):
            yield from _SENTENCE_END.split(' '.join(paragraph.split()))


def _length(sentence: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def _word_problems(text: Text) -> Iterator[tuple[int, str]]:
    prose = _ASK_AND_TELL.sub('', _CODE.sub(lambda m: '\n' * m[0].count('\n'), text.text))
    for match in _ANY_BAD_WORD.finditer(prose):
        use = next(use for word, use in _BAD_WORDS if word.fullmatch(match[0]))
        yield text.line + prose[: match.start()].count('\n'), f'{match[0]!r}: {use}'


def problems(path: Path, root: Path = ROOT) -> list[Problem]:
    """Lists everything in a file that breaks a rule of the language."""
    name = str(path.relative_to(root))
    found: list[tuple[int, str]] = []
    for text in texts(path):
        if text.kind == 'docstring' and (match := _QUESTION.match(text.text)):
            found.append((text.line, f'a docstring begins with {match[1]!r}'))
        if text.kind == 'comment' and (match := _BAD_COMMENT.match(text.text)):
            found.append((text.line, f'a comment begins with {match[1]!r}: name the thing'))
        found += _word_problems(text)
        for sentence in sentences(text):
            if (length := _length(sentence)) > MAX_WORDS:
                found.append((text.line, f'{length} words: {sentence[:60]} …'))
            if _THAT_OF_TWICE.search(sentence):
                found.append((text.line, f'"that of" twice: {sentence[:60]} …'))
            if text.kind == 'docstring' and _THAT_OF_ALONE.search(sentence):
                found.append((text.line, f'"that of" without its noun: {sentence[:60]} …'))
            if name.startswith(PACKAGES) and _WHAT.search(sentence):
                found.append((text.line, f"'what': name the thing: {sentence[:60]} …"))
    if path.suffix == '.py':
        check = _test_names if name.startswith('tests/') else _defined_names
        found += check(ast.parse(path.read_text()))
    return [Problem(name, *each) for each in sorted(found)]


def _test_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _BAD_TEST_NAME.search(node.name):
            yield node.lineno, f'{node.name}: name the behaviour in the terms of the field'


def _defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Finds the functions, classes, arguments and variables whose name is a coined word."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        for pattern, use in _BAD_NAMES:
            if pattern.fullmatch(name.lstrip('_')):
                yield node.lineno, f'the name {name!r}: {use}'


def long_sentences(path: Path) -> int:
    """Counts the sentences that are longer than the aim."""
    return sum(_length(each) > AIM for text in texts(path) for each in sentences(text))


def main() -> int:
    """Prints the problems, or a count for each file; returns 1 where `--check` finds any."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--check', action='store_true', help='list what breaks a rule')
    flags.add_argument('files', nargs='*', type=Path, help='all by default')
    args = flags.parse_args()
    known = files()
    chosen = [path for path in known if not args.files or path in map(Path.absolute, args.files)]
    found = {path: problems(path) for path in chosen}
    total = sum(map(len, found.values()))
    if args.check:
        print(*itertools.chain.from_iterable(found.values()), sep='\n')
    else:
        print(f'problems, and sentences of more than {AIM} words')
        for path, each in found.items():
            if (long := long_sentences(path)) or each:
                print(f'{len(each):4} {long:4}  {path.relative_to(ROOT)}')
    print(f'{total} problems' if total else 'the language holds')
    return 1 if args.check and total else 0


if __name__ == '__main__':
    sys.exit(main())
