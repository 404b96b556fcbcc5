"""Completion of the command `paxtune` in a shell, by argcomplete.

`protocol` talks to the shell. `values` has the completer of each flag, `source_names` the names of
experiments and parts of a search, and `paths` the paths of --set. Names come from the sources, by
`ast`: pressing TAB imports neither JAX nor a module of the user. Paths alone need the experiment.
"""
