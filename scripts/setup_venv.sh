#!/usr/bin/env bash
# Make the virtual environment $1 ready for what $2 names: "demo" (run the demo) or "dev" (tests, checks, benchmarks).
#
#   PYTHON       interpreter that makes the environment                         python3
#   CONSTRAINTS  version pins, above all of torch                               constraints/cpu.txt
#   TORCH_INDEX  a package index to take torch from, e.g. PyTorch's CPU wheels  none
set -euo pipefail

venv=$1 what=$2
python=${PYTHON:-python3}
constraints=${CONSTRAINTS:-constraints/cpu.txt}

die() { echo "setup: $*" >&2; exit 1; }
has_torch() { "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))'; }
has_nvidia_driver() { [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ] || command -v nvidia-smi >/dev/null; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

make_venv() {
    [ -x "$venv/bin/python" ] && return
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$python is older than 3.11: name another with PYTHON=..."
    "$python" -c 'import ensurepip, venv' 2>/dev/null || die "$python has no venv module: on Debian/Ubuntu, apt-get install python3-venv"
    "$python" -m venv "$venv"
}

# The CPU build carries the local version "+cpu", which the default index does not have: where pip finds one it is
# meant to be taken. Otherwise uv knows which of PyTorch's indexes fits this machine, with or without a GPU.
install_torch() {
    local version
    version=$(sed -n 's/^torch==//p' "$constraints")
    [ -n "$version" ] || die "$constraints pins no torch"
    if [ -n "${TORCH_INDEX:-}" ]; then
        pip install -q --extra-index-url "$TORCH_INDEX" -c "$constraints" torch
    elif has_nvidia_driver; then
        pip install -q -c "$constraints" torch
    elif pip install -q "torch==$version+cpu" 2>/dev/null; then
        :
    else
        pip install -q uv
        "$venv/bin/python" -m uv pip install -q --python "$venv/bin/python" --torch-backend auto "torch==$version" ||
            die "no CPU build of torch $version found: name PyTorch's CPU wheel index with TORCH_INDEX=... (without one pip would take several GB of CUDA)"
    fi
}

make_venv
pip install -q 'pip>=25.1'  # the first that reads dependency groups
if ! has_torch; then
    echo "setup: installing torch" >&2
    install_torch
fi

# From here on torch stays as it is, whatever the constraints say.
pinned=$venv/constraints.txt
grep -v '^torch==' "$constraints" >"$pinned" || true
echo "torch==$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))')" >>"$pinned"

echo "setup: installing starprof for $what" >&2
case $what in
    demo) pip install -q -c "$pinned" -e '.[demo]' ;;
    dev) pip install -q -c "$pinned" -e '.[all]' --group dev ;;
    *) die "don't know how to set up for '$what'" ;;
esac
