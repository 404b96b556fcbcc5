"""The view of one trial: state, history, curve, note, changes, architecture, log."""

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from paxtune.page import choices, figures, file_views, note, trial_changes, widgets
from paxtune.page.live import LiveStudy
from paxtune.page.view import Page, View
from paxtune.plots.learning_curves import trial_curve
from paxtune.reports.model_tables import architecture_table
from paxtune.reports.study_tables import facts_of
from paxtune.reports.tables import Table
from paxtune.study.worker_logs import lines_about


def layout(live: LiveStudy, number: int) -> list[Any]:
    """Makes the view; callbacks fill in live content. Raises UserError without a trial."""
    live.study.trial(number)
    parts: list[Any] = [
        html.H2(f'Trial {number}'),
        dcc.Link('Compare with another one', href=widgets.address(f'/compare/{number}')),
        *choices.elements(live, ['reward']),
        figures.graph('trial'),
        html.Div(id='trial-live'),
        html.H3('Note'),
        note.rendered(),
        note.form(live, number),
        *trial_changes.elements(),
    ]
    if live.study.space.is_tunable:
        parts += [html.H3('Architecture'), dcc.Loading(html.Div(id='architecture'))]
    return [*parts, *file_views.elements(), html.H3('Log'), html.Div(id='trial-log')]


def register(app: Dash, page: Page) -> None:
    """Adds the callbacks of the view."""
    live, commands = page.live, page.commands
    trial_changes.register(app, live, page.actions)
    file_views.register(app, live)

    @app.callback(
        Output('trial-live', 'children'), Input('version', 'data'), State('url', 'pathname')
    )
    @widgets.guarded
    def refresh(version: str, path: str) -> list[Any]:
        return _parts(live, widgets.trial_at(path))

    figures.register_clicks(app, 'figure-trial')

    @app.callback(
        Output('figure-trial', 'figure'),
        Output('drawn-trial', 'data'),
        Input('version', 'data'),
        Input('choice-reward', 'value'),
        State('url', 'pathname'),
        State('drawn-trial', 'data'),
    )
    def curve(version: str, reward: str | None, path: str, known: str | None) -> Any:
        number = widgets.trial_in(path)
        if number is None:
            return no_update, no_update
        key = 'figure-trial', number, reward
        return figures.drawn(live, key, lambda: trial_curve(live.study, number, reward), known)

    @app.callback(
        Output('trial-log', 'children'), Input('version', 'data'), State('url', 'pathname')
    )
    @widgets.guarded
    def log(version: str, path: str) -> Any:
        lines = lines_about(live.study.directory, widgets.trial_at(path))
        if not lines:
            return widgets.remark('No worker has written about this trial in logs/ of the study.')
        return html.Pre('\n'.join(lines), className='log')

    @app.callback(Output('architecture', 'children'), Input('url', 'pathname'))
    @widgets.guarded
    def architecture(path: str) -> list[Any]:
        return [
            part
            for model in commands.architecture(widgets.trial_at(path))
            for part in _model(model)
        ]


def _parts(live: LiveStudy, number: int) -> list[Any]:
    study = live.study
    trial = study.trial(number)
    names = sorted({name for each in trial.measurements for name in each.metrics})
    rewards = [f'reward {i + 1}' for i in range(len(study.rewards))]
    rows = [
        {'step': each.step, **dict(zip(rewards, each.rewards, strict=False)), **each.metrics}
        for each in trial.measurements
    ]
    measured = Table(rows, ['step', *rewards, *names], 'Measurements')
    return [*widgets.document(facts_of(study, trial)), widgets.table(measured)]


def _model(model: dict[str, Any]) -> list[Any]:
    name = model['sub_experiment']
    if 'problem' in model:
        return [widgets.problem(f'{name}: {model["problem"]}' if name else model['problem'])]
    costs = [name for name, each in model.items() if isinstance(each, int | float)]
    return [widgets.table(architecture_table(model, costs, name))]


VIEW = View('/trial', layout, register, numbers=r'/(\d{1,9})')
