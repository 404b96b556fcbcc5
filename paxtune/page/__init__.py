"""The study page: a live view of one study in a browser, and changes of it.

`server` makes the Dash application and serves it. `access` decides which requests it answers.
`live` reads the study repeatedly. Each file in `views` is a view, which makes components of what is
read: a new view is one file there. `figures` draws again what has changed, and `choices` has what a
browser chooses for that. `rows` sorts and filters
trials. `actions` changes the study, by the functions of the commands. `widgets` renders tables and
text. What needs JAX runs as a command in a process of its own (`commands`), and so do the figures
of the model: the server stays small.

Text of a study only becomes text of components, which a browser never reads as HTML.
"""
