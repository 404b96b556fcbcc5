"""The study page: a live view of a study in a browser, and changes of it; or of all in a directory.

`front` serves applications, and answers the requests that `access` allows; `failures` answers those
that fail. `server` makes the Dash application of a study, and `studies` has one for each study of a
directory beside their list. `live` reads a study repeatedly, `live_studies` a directory, and
`results` keeps the results of both. Each file in `views` is a view, which renders the snapshot: a
new view is one new file. `figures` redraws changed figures, which `fitting` fits into the page, and
`choices` has the inputs of a browser for them. `links` reads the settings of a view in its address,
and `assets/trials.js` writes them. `rows` sorts and filters trials. `actions` changes the study, by
the functions of the commands. `widgets` renders tables and text. Code that needs JAX, and the
figures of the model, run as commands in another process (`commands`), so the server stays small.

Text of a study only becomes text of components, which a browser never reads as HTML.
"""
