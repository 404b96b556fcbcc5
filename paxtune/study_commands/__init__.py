"""Commands on studies: the flags and the function of each command of `paxtune.studies`.

A command is one function with its registration above it. `looking` has the commands that only read,
`changing` those that write to a study, and `files` those that write or read a file. `report` writes
a report, and `page` serves the study page. `base` has their common parts. A command parses flags,
opens the study and prints. `paxtune.reports` makes the printed documents, and `paxtune.study` the
changes.
Functions import what they need, so that `--help` and a refusal are fast.
"""
