#!/bin/sh
# Prints a Python of the given version that runs; exits 1 where there is none.
#
#   tools/find_python.sh 3.12
#
# A name on the PATH is not enough: pyenv's shims exist for versions that they refuse to run.
for candidate in "python$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python3; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) &&
        [ "$version" = "$1" ] && command -v "$candidate" && exit 0
done
echo "Python $1 was not found on the PATH or among pyenv's versions." >&2
exit 1
