#!/bin/sh
# Makes the environment where it is missing or out of date, runs a command in it, and prints how
# long each took. Without a command it only makes the environment.
#
#   tools/with_environment.sh python -m paxtune.search --help
#
# VENV         where the environment lies (.venv)
# PYTHON       what makes it (the python3.11 that tools/find_python.sh finds)
# CONSTRAINTS  versions and hashes to install (constraints.txt; /dev/null for the newest)
# EXTRAS       of the newest ([dev]; empty for what a user installs)
cd "$(dirname "$0")/.." || exit
venv=${VENV:-.venv}
constraints=${CONSTRAINTS:-constraints.txt}
python=${PYTHON:-$(tools/find_python.sh 3.11)} || exit

# What the environment was made from. Written last, so that an interrupted install starts again.
stamp() {
    pwd
    "$python" --version
    cat pyproject.toml "$constraints"
}

up_to_date() {
    [ -e "$venv/installed" ] && stamp | cmp -s - "$venv/installed" && "$venv/bin/python" -c ''
}

by_pip() { "$venv/bin/python" -m pip install -q "$@"; }

# uv installs several times faster than pip; pip reaches package indexes that only its own
# configuration names. As pip does, uv shall compile what it installs: where Python is told to write
# no bytecode, as in most containers, every process would compile all it imports.
by_uv() { "$venv/bin/uv" pip install -q --compile-bytecode --python "$venv/bin/python" "$@"; }

# Installs the pinned packages, each only from a file whose hash its pin has. Then the project alone,
# which the pinned hatchling builds: the versions and hashes of no other package are known.
pinned() {
    "$1" --require-hashes -r "$constraints" && "$1" --no-deps --no-build-isolation -e .
}

newest() { "$1" -e ".${EXTRAS-[dev]}"; }

install() {
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    "$python" -m venv --clear "$venv" || return
    if [ "$constraints" = /dev/null ]; then
        how=newest
        by_pip uv
    else
        how=pinned
        export UV_BUILD_CONSTRAINT="$constraints"  # What builds a source distribution has pins, too.
        sed -n '/^uv==/,/[^\\]$/p' "$constraints" >"$venv/uv.txt"
        by_pip --no-deps --require-hashes -r "$venv/uv.txt"
    fi && "$how" by_uv || {
        echo 'uv did not install it; now with pip, which takes longer' >&2
        "$how" by_pip || return
    }
    stamp >"$venv/installed"
}

now() { date +%s; }

start=$(now)
if up_to_date; then
    echo "installing took 0 s ($venv is up to date)"
else
    echo "installing into $venv"
    install || exit
    echo "installing took $(($(now) - start)) s"
fi
[ $# -gt 0 ] || exit 0

# The command gets Ctrl-C, too, and decides what it means: wait for it.
trap : INT
start=$(now)
PATH="$(cd "$venv/bin" && pwd):$PATH" "$@"
status=$?
echo "the work took $(($(now) - start)) s"
exit $status
