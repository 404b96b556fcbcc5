"""Errors that are for people."""


class UserError(Exception):
    """Something that the person who started the command can put right.

    The message says what is wrong, where (the path in the experiment), what was expected and what
    to do. Commands print it without a traceback and exit with code 2.
    """
