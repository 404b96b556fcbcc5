"""The study page: a live view of one study in a browser, and changes of it.

`server` makes the Dash application and serves it. `access` decides which requests it answers, and
`failures` answers those that fail. `live` reads the study repeatedly. Each file in `views` is a
view, which renders the snapshot: a new view is one new file. `figures` redraws changed figures, and
`choices` has the inputs of a browser for them. `rows` sorts and filters trials. `actions` changes
the study, by the functions of the commands. `widgets` renders tables and text. Code that needs JAX,
and the figures of the model, run as commands in another process (`commands`), so the server stays
small.

Text of a study only becomes text of components, which a browser never reads as HTML.
"""
