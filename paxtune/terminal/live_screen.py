"""The screen of a running study: a pure function of its state."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.text import Text

from paxtune.analysis.study_poller import LOSS
from paxtune.analysis.study_state import StudyState, TrialProgress
from paxtune.reports.folding import folded
from paxtune.study.record import Event, Status
from paxtune.study.replicates import LeaderboardEntry
from paxtune.study.trial import Trial
from trainer.command import counted, printable
from trainer.runtime.run_display import rendered_time

_BLOCKS, _ASCII_BLOCKS = '▁▂▃▄▅▆▇█', '_.:-=+*#'
_CURVE_WIDTH = 12
_BAR_WIDTH, _BESIDE_BAR = 30, 34
_GAP = 2
_MIN_DECISIONS = 16
_FEW_LINES = 8  # A terminal with fewer has room for nothing but trials.
_MAX_EVENTS = 5
_MAX_BEST = 4  # Lines of the decisions of the best trial.
_STYLES = {'stopped': 'yellow', 'infeasible': 'red', 'failed': 'red', 'lost': 'red'}


@dataclasses.dataclass(frozen=True)
class Size:
    """The room of a screen, in characters.

    Attributes:
        is_ascii: the terminal shows no other characters.
    """

    width: int
    height: int
    is_ascii: bool = False


@dataclasses.dataclass(frozen=True)
class Labels:
    """Names of a study and its parts, for people.

    Attributes:
        where: the name of the study.
        rewards: one name for each objective.
        describe: renders the decisions of a trial on one line; '' if they cannot be read.
    """

    where: str
    rewards: Sequence[str] = ('reward',)
    describe: Callable[[Trial], str] = lambda trial: ''


def screen(state: StudyState, labels: Labels, size: Size, notice: str = '') -> Text:
    """Renders the state of a study, in no more lines and columns than there are.

    A small terminal first loses the last events, then the trials that do not run, then the trials
    that began first.

    Args:
        notice: a line for people at the end, such as the answer to a signal.
    """
    head = [_progress(state, size), *_counts(state, size), *_best(state, labels, size)]
    if labels.where and size.height >= _FEW_LINES:
        head.insert(0, Text(printable(labels.where), 'bold'))
    foot = _folded(notice, size, 'bold yellow')[: size.height - 1] if notice else []
    room = max(0, size.height - len(head) - len(foot))
    # A search without rewards only measures.
    reward = printable(next(iter(labels.rewards), 'reward'))
    cells = [_cells(each, reward, labels, size) for each in state.running]
    trials = _trials(cells, size, room)
    count = min(_MAX_EVENTS, room - len(trials) - 1)
    events = [_event(*each) for each in state.events(count)] if count > 0 else []
    lines = [*head, *trials, *([Text()] if events else []), *events]
    lines = [*lines[: max(0, size.height - len(foot))], *foot]
    return Text('\n').join(_cropped(line, size) for line in lines[: size.height])


def sparkline(values: Sequence[float], width: int, is_ascii: bool = False) -> str:
    """Draws values as blocks, from the least to the greatest; some of them if they are many.

    NaN and infinite values are left out.

    Example:
        >>> sparkline([3.0, 2.0, 1.5, 1.0], 8)
        '█▅▃▁'
    """
    blocks = _ASCII_BLOCKS if is_ascii else _BLOCKS
    values = [each for each in values if math.isfinite(each)]
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    # Half the span: the span of the greatest floats overflows.
    top, span = len(blocks) - 1, high / 2 - low / 2
    return ''.join(
        blocks[round((each / 2 - low / 2) / span * top) if span else 0] for each in values
    )


def counts_line(state: StudyState) -> str:
    """Renders the numbers of trials by their state, and of the failed ones."""
    counts, num_failed = state.counts, state.num_failed
    failed = {Status.INFEASIBLE: f' ({num_failed} failed)' if num_failed else ''}
    parts = [f'{counts[how]} {how}{failed.get(how, "")}' for how in Status if counts.get(how)]
    return ', '.join(parts) or 'no trial yet'


def best_line(state: StudyState, labels: Labels) -> str:
    """Renders the best trial so far, or the size of the Pareto front; '' before the first."""
    if (best := state.best) is not None:
        text = f'best: trial {best.trial.id}, {labels.rewards[0]}={best.rewards[0]:.6g}'
        return printable(text + error_text(best))
    return f'{state.front} that no other is better than' if state.front else ''


def error_text(best: LeaderboardEntry) -> str:
    """Renders the standard error of a mean reward; '' if a trial ran once."""
    error = best.standard_errors[0]
    return (
        '' if error is None else f' ± {error:.2g}, the mean of {counted(len(best.trials), "trial")}'
    )


def state_remarks(state: StudyState) -> list[str]:
    """Says for people why no trial runs, or soon none will; empty where trials run."""
    if state.is_done:
        return ['the study is done']
    if state.record.pause_requested:
        return ['a pause was asked for']
    held = any(each.trial.record.holder for each in state.running)
    return [] if held else ['no worker has a trial']


def summary_line(state: StudyState, labels: Labels) -> str:
    """Renders the counts of a study and its best trial, on one line."""
    ended = _ended(state)
    return '; '.join(filter(None, [f'{ended}: {counts_line(state)}', best_line(state, labels)]))


def ended_line(trial: Trial, labels: Labels) -> str:
    """Renders how a trial has ended."""
    named = zip(labels.rewards, trial.rewards, strict=False)
    parts = [str(trial.status), *(f'{name}={reward:.5g}' for name, reward in named)]
    text = f'trial {trial.id}: {", ".join(parts)}'
    if decisions := labels.describe(trial):
        text += f' ({decisions})'
    return text + (f': {trial.reason}' if trial.reason else '')


def _ended(state: StudyState) -> str:
    total = state.num_trials
    return f'{state.num_ended} of {counted(total, "trial") if total else "? trials"}'


def _progress(state: StudyState, size: Size) -> Text:
    done, total = state.num_ended, state.num_trials
    text = Text().append(_ended(state), 'bold')
    if total:
        width = max(0, min(_BAR_WIDTH, size.width - _BESIDE_BAR))
        filled = round(min(1.0, done / total) * width)
        full, empty = '#-' if size.is_ascii else '━─'
        text.append(' ').append(full * filled, 'green').append(empty * (width - filled), 'dim')
    if state.seconds_left is not None:
        text.append(f' {_rendered_time(state.seconds_left)}')
    elif total and not state.is_done:
        text.append(f' {counted(max(0, total - done), "trial")} left')
    return text


def _rendered_time(seconds: float) -> str:
    hours = seconds / 3600
    return f'about {hours:.1f} h left' if hours > 1.5 else rendered_time(seconds)


def _counts(state: StudyState, size: Size) -> list[Text]:
    lines = _folded(', '.join([counts_line(state), *state_remarks(state)]), size, '')
    for line in lines:
        line.highlight_words([Status.STOPPED], 'yellow')
        line.highlight_words([Status.INFEASIBLE, 'failed)'], 'red')
    return lines


def _best(state: StudyState, labels: Labels, size: Size) -> list[Text]:
    """Renders the best trial on a line; its decisions may have lines of their own."""
    if not (text := best_line(state, labels)):
        return []
    decided = printable(labels.describe(state.best.trial)) if state.best is not None else ''
    more = f' ({decided})' if decided else ''
    if size.height < _FEW_LINES or cell_len(text + more) <= size.width:
        return [Text().append(text, 'bold green').append(more, 'green')]
    return [*_folded(text, size, 'bold green'), *_folded(decided, size, 'green')[:_MAX_BEST]]


def _folded(text: str, size: Size, style: str) -> list[Text]:
    return [Text(line, style) for line in folded(printable(text), size.width)]


def _event(trial: int, event: Event) -> Text:
    text = Text(f'{event.time.astimezone():%H:%M:%S}  trial {trial}  ')
    text.append(printable(event.event), _STYLES.get(event.event, ''))
    return text.append(f'  {printable(_one_line(event.detail))}' if event.detail else '')


def _one_line(text: str) -> str:
    return ' '.join(text.split())


def _trials(running: Sequence[dict[str, str]], size: Size, room: int) -> list[Text]:
    """Renders a heading and a line for each trial, in at most `room` lines."""
    if not running or room < 2:
        return []
    most = room - 1  # Beside the heading.
    count = len(running) if len(running) <= most else max(1, most - 1)
    kept = sorted(running[::-1], key=_rank)[:count]  # Sorting is stable.
    drawn = sorted(kept[::-1], key=_rank)
    columns = _fitting(drawn, size.width)
    lines = [_line({name: name for name in columns}, columns, size, 'dim')]
    rows = [_divided(cells, columns) for cells in drawn]
    if sum(map(len, rows)) > most - _MAX_EVENTS - 1:  # Events have their room.
        rows = [[cells] for cells in drawn]
    for first, *others in rows:
        style = '' if first['state'] == 'running' else 'dim'
        lines += [_line(cells, columns, size, style) for cells in (first, *others)]
    if (hidden := len(running) - len(drawn)) and len(lines) < room:
        lines.append(Text(f'and {counted(hidden, "other trial")}', 'dim'))
    return lines


def _rank(cells: Mapping[str, str]) -> int:
    """Returns the place of a trial's state on the screen: trials that run are the first."""
    return {'waiting': 1, 'paused': 2}.get(cells['state'], 0)


def _cells(each: TrialProgress, reward: str, labels: Labels, size: Size) -> dict[str, str]:
    """Renders a trial by column, the most important ones first."""
    loss = each.training.get(LOSS)
    cells = {
        'trial': str(each.trial.id),
        'step': str(each.step),
        reward: f'{each.rewards[0]:.5g}' if each.rewards else '',
        'curve': sparkline(each.curve, _CURVE_WIDTH, size.is_ascii),
        'steps/s': '' if each.speed is None else f'{each.speed:.3g}',
        'state': each.state,
        'decisions': labels.describe(each.trial),
        'train/loss': '' if loss is None else f'{loss:.5g}',
        'worker': each.trial.record.holder,
        'attempt': str(each.trial.attempt) if each.trial.attempt > 1 else '',
    }
    return {name: printable(text) for name, text in cells.items()}


def _fitting(cells: Sequence[dict[str, str]], available: int) -> dict[str, int]:
    """Returns widths by column, for those columns that are not empty and that fit."""
    widths: dict[str, int] = {}
    used = 0
    for name in cells[0]:
        content = max(cell_len(line[name]) for line in cells)
        width = max(content, cell_len(name))
        least = min(width, _MIN_DECISIONS) if name == 'decisions' else width
        if content and used + least <= available:
            widths[name] = least
            used += least + _GAP
    if 'decisions' in widths:  # At the end, in all the room that is left.
        del widths['decisions']
        widths['decisions'] = available - sum(widths.values()) - _GAP * len(widths)
    return widths


def _divided(cells: dict[str, str], columns: dict[str, int]) -> list[dict[str, str]]:
    """Divides a trial into lines, in which its decisions are whole."""
    if 'decisions' not in columns:
        return [cells]
    first, *others = folded(cells['decisions'], columns['decisions'])
    blank = dict.fromkeys(cells, '')
    return [cells | {'decisions': first}, *(blank | {'decisions': each} for each in others)]


def _line(cells: dict[str, str], columns: dict[str, int], size: Size, style: str) -> Text:
    texts = [Text(cells[name]) for name in columns]
    for text, width in zip(texts, columns.values(), strict=True):
        text.truncate(width, overflow=_overflow(size), pad=True)
    line = Text(' ' * _GAP).join(texts)
    line.rstrip()
    line.stylize(style)
    return line


def _cropped(line: Text, size: Size) -> Text:
    line.truncate(size.width, overflow=_overflow(size))
    return line


def _overflow(size: Size) -> Literal['crop', 'ellipsis']:
    return 'crop' if size.is_ascii else 'ellipsis'
