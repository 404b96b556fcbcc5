"""The command `paxtune.studies`: the flags of its sub-commands, and the call that each makes.

A sub-command is one function with its registration above it. `looking` has commands that only
read, `changing` commands that write to a study, and `files` commands that write or read a file.
`report` writes a report, and `page` serves the study page. `base` has their common parts.
`paxtune.reports` makes the printed documents, and `paxtune.study` the changes.
Functions import their modules themselves, so that `--help` and a refusal are fast.
"""
