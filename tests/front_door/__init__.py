"""The first hours of a new user: own files, own mistakes, in a terminal of 80 x 24."""
