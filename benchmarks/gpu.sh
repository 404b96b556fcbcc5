#!/bin/bash
# Measures on a GPU machine that has Python 3.12, JAX 0.11 with CUDA, flax and optax, and no network.
#
#   benchmarks/gpu.sh wheels DIR     downloads the other packages that a search imports: 20 MB
#   benchmarks/gpu.sh a              step_time.py and precision.py with 124M, 1B and 350M
#   benchmarks/gpu.sh b              packing.py with 10M and with adapters of SmolLM2, a search with
#                                    --pack=auto, executions.py
#   benchmarks/gpu.sh python ARGS    runs Python with the downloaded packages
#   benchmarks/gpu.sh --rehearse a   the same commands at tiny sizes, on a CPU
#
# First `benchmarks/gpu.sh wheels .wheels`, where there is a network. Then the two parts, in two calls
# of a lent machine, the second within 30 s of the first so that the machine is still warm:
#
#   run(command='WHEELS=.wheels benchmarks/gpu.sh a', carry=['.wheels'], timeout_s=420)
#   run(command='WHEELS=.wheels benchmarks/gpu.sh b', carry=['.wheels'], timeout_s=420)
#
# Each step writes $OUT/STEP.txt as it measures. A step that fails, or whose time is over, leaves a
# line in $OUT/a.txt or b.txt, and the next one runs. Time that a step leaves goes to the next one.
#
# OUT           where the figures go (benchmarks/results/gpu)
# WHEELS        a directory of wheels to install; empty for the packages of $PYTHON alone
# PYTHON        the machine's Python (python3); its own packages are never changed
# PART_SECONDS  the seconds of the steps of a part (370): both parts and a start fit into 15 minutes
cd "$(dirname "$0")/.." || exit
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results/gpu}
part_seconds=${PART_SECONDS:-370}
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1

# Beyond what jax, flax and optax bring. Versions and hashes stand in constraints.txt.
packages='annotated-types argcomplete attrs cloudpickle cmaes docstring-parser einshape filelock
    google-vizier googleapis-common-protos grpcio grpcio-health-checking immutabledict jaxtyping
    msgspec orbax-checkpoint packaging protobuf pydantic pydantic-core pyglove qwix sqlalchemy
    tenacity tensorboardx termcolor threadpoolctl tokamax tqdm typeguard typing-inspection
    wadler-lindig'

wheels() {
    mkdir -p "$1" && rm -f "$1"/*.whl || return
    pins=$(mktemp)
    for name in $packages; do
        sed -n "/^$name==/,/[^\\]\$/p" constraints.txt
    done >"$pins"
    platforms=$(printf -- ' --platform=manylinux_2_%s_x86_64' 28 27 17)
    # shellcheck disable=SC2086  # Each platform is a word.
    "$python" -m pip download -q --dest "$1" --no-deps --require-hashes -r "$pins" \
        --only-binary=:all: --implementation=cp --python-version=3.12 $platforms \
        --platform=manylinux2014_x86_64 && du -ch "$1"/*.whl | tail -1
    status=$?
    rm "$pins"
    return $status
}

# Makes a virtual environment over the packages of $PYTHON, installs the wheels there, and uses it.
install() {
    for name in jax jaxlib flax optax numpy; do
        if ls "$WHEELS/$name"-*.whl >/dev/null 2>&1; then
            echo "error: $WHEELS has a wheel of $name, which would hide the machine's" >&2
            return 1
        fi
    done
    venv=$scratch/venv
    "$python" -m venv --system-site-packages --without-pip "$venv" || return
    where='import sysconfig; print(sysconfig.get_path("purelib"))'
    site=$("$venv/bin/python" -c "$where") || return
    # Where $PYTHON is itself of a virtual environment, its packages are not those of the system.
    echo "import site; site.addsitedir('$("$python" -c "$where")')" >"$site/machine.pth"
    "$python" -m pip install -q --no-index --no-deps --target "$site" "$WHEELS"/*.whl || return
    python=$venv/bin/python
}

# step NAME PERCENT COMMAND...: runs a command until its percent of the part's time are over, too.
step() {
    name=$1
    deadline=$((deadline + part_seconds * $2 / 100))
    shift 2
    start=$SECONDS
    limit=$((deadline - start))
    if [ $limit -le 0 ]; then
        status=124
    else
        timeout --kill-after=5 $limit "$@" 2>&1 | tee "$out/$name.txt"
        status=${PIPESTATUS[0]}
    fi
    case $status in
        0) how='done' ;;
        124 | 137) how="stopped: the limit of $limit s is over" ;;
        *) how="failed with status $status" ;;
    esac
    [ "$status" = 0 ] || failed=1
    echo "$name: $how ($((SECONDS - start)) s)" | tee -a "$part_file"
}

describe_machine() {
    date -u +%F
    "$python" --version
    nvidia-smi -L 2>/dev/null
    git log -1 --format='commit %h' 2>/dev/null
    timeout 60 "$python" -c 'import jax; print("jax", jax.__version__, jax.devices()[0].device_kind)'
} >"$part_file" 2>&1

part_a() {
    if [ $rehearsal ]; then
        step step_time 60 "$python" benchmarks/step_time.py --quick
        step precision 40 "$python" benchmarks/precision.py --only=small --quick
        return
    fi
    step step_time_124M 24 "$python" benchmarks/step_time.py --only=124M
    step precision_124M 16 "$python" benchmarks/precision.py --only=124M
    step step_time_1B 18 "$python" benchmarks/step_time.py --only=1B
    step precision_1B 14 "$python" benchmarks/precision.py --only=1B
    step step_time_350M 16 "$python" benchmarks/step_time.py --only=350M
    step precision_350M 12 "$python" benchmarks/precision.py --only=350M
}

part_b() {
    packed='--only=10M'
    adapters=()
    trials=32
    sizes=()
    executions=(--rounds=3)
    if [ $rehearsal ]; then
        packed='--quick'
        adapters=(--quick)
        trials=2
        sizes=(--set task.model.embedding.dims=16 --set task.model.stack.repeats=1)
        executions=(--only=3k --rounds=1)
    fi
    step packing 25 "$python" benchmarks/packing.py "$packed" --no_searches
    step adapters 20 "$python" benchmarks/packing.py --adapters "${adapters[@]}" --no_searches
    step search 20 "$python" -m paxtune.search --exp=benchmarks.turnover.experiment.numbers \
        --job_log_dir="$scratch/search" --num_trials=$trials --algorithm=random_search \
        --scheduler=none --pack=auto "${sizes[@]}"
    step executions 35 "$python" benchmarks/executions.py "${executions[@]}"
}

usage() {
    sed -n '2,/^cd /s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

[ "$1" = --rehearse ] && rehearsal=1 && export JAX_PLATFORMS=cpu && shift
command=$1
shift
[ "$command" = wheels ] && [ $# = 1 ] && { wheels "$1"; exit; }
case $command in a | b | python) ;; *) usage ;; esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ -z "$WHEELS" ] || install || exit
[ "$command" = python ] && { "$python" "$@"; exit; }
mkdir -p "$out" || exit
part_file=$out/$command.txt
failed=0
deadline=$SECONDS
describe_machine
cat "$part_file"
"part_$command"
exit $failed
