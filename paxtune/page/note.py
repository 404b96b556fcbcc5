"""Notes on the study and on trials, as Markdown; the same elements on either view."""

from typing import Any

from dash import Dash, State, dcc, html

from paxtune.page import widgets
from paxtune.page.actions import Actions
from paxtune.page.live import LiveStudy
from paxtune.study.notes import MAX_LENGTH


def rendered() -> html.Div:
    """Makes the element of the rendered note, which a callback fills in."""
    return html.Div(id='note-shown')


def form(live: LiveStudy, trial: int | None) -> html.Div:
    """Makes the element in which the note on a trial, or on the study, is written."""
    text = dcc.Textarea(id='note', value=_text(live, trial), maxLength=MAX_LENGTH)
    button = html.Button('Keep the note', id='keep-note')
    done = html.Div(id='note-done', className='done', role='status')
    return html.Div(
        [html.Div([widgets.labelled('Note, in Markdown', text), button], className='form'), done]
    )


def register(app: Dash, live: LiveStudy, actions: Actions) -> None:
    """Adds the callbacks of both views."""

    def current(path: str) -> Any:
        text = _text(live, widgets.trial_in(path))
        # HTML stays text, and images of other hosts are not loaded.
        return dcc.Markdown(text, className='note') if text else ''

    def keep(path: str, text: str | None) -> str:
        return actions.note(widgets.trial_in(path), text or '')

    widgets.follow(app, 'note-shown', current, widgets.PATH)
    note = State('note', 'value')
    widgets.on_click(app, 'keep-note', 'note-done', keep, widgets.PATH, note)


def _text(live: LiveStudy, trial: int | None) -> str:
    record = live.snapshot().record
    return record.note if trial is None else record.notes.get(trial, '')
