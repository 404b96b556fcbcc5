"""The applications of the page: views of one source, below one heading and one navigation."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import flask
from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune.page import choices, failures, front, note, widgets
from paxtune.page.actions import Actions
from paxtune.page.commands import StudyCommands
from paxtune.page.links import Link
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.page.views import VIEWS
from paxtune.plots.script import script
from trainer.symbolic.errors import UserError

_PLOTLY = '/_dash-component-suites/plotly/package_data/plotly.min.'

# The script in the head sets the colours before anything is drawn.
_INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>
    {{%metas%}}
    <title>{{%title%}}</title>
    {{%favicon%}}
    {{%css%}}
    <script src="{base_path}assets/page.js"></script>
  </head>
  <body>
    {{%app_entry%}}
    <footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
  </body>
</html>"""


@dataclasses.dataclass(frozen=True)
class Site:
    """Views of one source: a study, or a directory of studies.

    Attributes:
        name: the heading of all views.
        where: the location of the source, for people.
        version: returns the version of the source for browsers; raises UserError.
        views: the views, in the order of the navigation.
        source: the first argument of the layouts of views.
        page: the argument with which views register.
        home: the address of the list of studies; '' without one.
    """

    name: str
    where: str
    version: Callable[[], str]
    views: Sequence[View]
    source: Any
    page: Any
    home: str = ''


def study_app(live: LiveStudy, base_path: str, home: str = '') -> Dash:
    """Makes the application of a study, which checks no access.

    Args:
        live: the study.
        base_path: the path of the overview in a browser.
        home: the address of the list of studies; '' without one.
    """
    commands = StudyCommands(live.location)
    page = Page(live, commands, Actions(live, commands))
    name, where = map(widgets.encodable, (live.name, str(live.where)))
    site = Site(name, where, live.version, VIEWS, live, page, home)
    app = site_app(site, base_path)
    choices.register(app, live)
    note.register(app, live, page.actions)
    return app


def site_app(site: Site, base_path: str) -> Dash:
    """Makes an application with its views and their callbacks."""
    app = Dash(
        'paxtune.page',
        title=escape(site.name),  # Dash does not escape it.
        index_string=_INDEX.format(base_path=base_path),
        include_pages_meta=False,
        update_title='',
        serve_locally=True,
        suppress_callback_exceptions=True,  # Each view has components of its own.
        add_log_handler=False,
        assets_folder='assets',
        assets_ignore=r'page\.js',  # It is in the head.
        pages_folder='',
        # The server takes the base path away, where a proxy has left it.
        routes_pathname_prefix='/',
        requests_pathname_prefix=base_path,
    )
    app.layout = functools.partial(_frame, site)
    _register(app, site)
    for view in site.views:
        view.register(app, site.page)
    failures.register(app)
    _serve_small_plotly(app)
    _add_policy(app)
    return app


def _frame(site: Site) -> list[Any]:
    """Makes the frame of all views, for a browser that opens the page."""
    home = [html.A('All studies', href=site.home, className='home')] if site.home else []
    return [
        # Other views open without a reload.
        dcc.Location(id='url', refresh='callback-nav'),
        dcc.Interval(id='tick', interval=widgets.INTERVAL_MS),
        dcc.Store(id='version', data=_version(site)),
        html.A('Skip to the content', href='#view', className='skip'),
        html.Header(
            [
                *home,
                html.H1(site.name),
                html.Span(site.where, className='where'),
                html.Nav(_links(site, ''), id='nav', **widgets.aria(label='Views')),
                html.Button('Dark', id='scheme', **widgets.aria(pressed='false')),
                html.Div(id='connection', role='status'),
            ]
        ),
        html.Main(id='view', tabIndex='-1'),
    ]


def _version(site: Site) -> str | None:
    try:
        return site.version()
    except UserError:  # The first tick says so.
        return None


def _links(site: Site, path: str, search: str = '') -> list[Any]:
    return [
        dcc.Link(
            view.title,
            href=widgets.address(view.path) + search,  # The views have settings in common.
            className='current' if view.path == path else '',
        )
        for view in site.views
        if view.title
    ]


def _register(app: Dash, site: Site) -> None:
    @app.callback(Output('view', 'children'), Input('url', 'pathname'), State('url', 'search'))
    @widgets.guarded
    def view(path: str, search: str) -> Any:
        return _layout(site, widgets.path_in(path), Link.parse(search))

    @app.callback(Output('nav', 'children'), Input('url', 'pathname'), Input('url', 'search'))
    def navigation(path: str, search: str) -> list[Any]:
        return _links(site, widgets.path_in(path), search)

    @app.callback(
        Output('version', 'data'),
        Output('connection', 'children'),
        Input('tick', 'n_intervals'),
        State('version', 'data'),
    )
    def tick(count: int | None, known: str | None) -> tuple[Any, Any]:
        try:
            version = site.version()
        except UserError as error:
            return no_update, widgets.problem(error)
        return no_update if version == known else version, ''


def _layout(site: Site, path: str, link: Link) -> Any:
    for view in site.views:
        if (numbers := view.numbers_in(path)) is not None:
            return view.layout(site.source, link, *numbers)
    raise UserError(f'the page has no {path}')


def _serve_small_plotly(app: Dash) -> None:
    """Answers with plotly's small bundle, which a browser compiles in a third of the time."""
    small = script()
    server: flask.Flask = app.server

    @server.before_request
    def plotly() -> Any:
        if not small.is_small or not flask.request.path.startswith(_PLOTLY):
            return None
        answer = flask.Response(small.packed, mimetype='text/javascript')
        answer.headers['Content-Encoding'] = 'gzip'
        return answer


def _add_policy(app: Dash) -> None:
    server: flask.Flask = app.server

    @server.after_request
    def add(answer: flask.Response) -> flask.Response:
        # Dash adds scripts of its own at the first request.
        answer.headers.setdefault('Content-Security-Policy', front.policy(app.csp_hashes()))
        return answer
