#!/bin/sh
# Make a virtual environment and install the library into it, with the tested versions or those of another file.
#   tools/venv.sh PYTHON FOLDER [EXTRAS [CONSTRAINTS]]    without EXTRAS: an empty environment
# TORCH_CPU_INDEX: the index asked for a CPU build of PyTorch where there is no NVIDIA GPU; if empty, none is asked.
set -eu
python=$1 venv=$2 extras=${3-} constraints=${4:-constraints.txt}
index=${TORCH_CPU_INDEX-https://download.pytorch.org/whl/cpu}
log=$venv/setup.log

pip() {
    "$venv/bin/python" -m pip --no-input --disable-pip-version-check "$@"
}

# Say nothing if all goes well, else what pip said, from its first complaint on. Less than that is too little: with
# --quiet, it names the packages that do not fit together but not why.
install() {
    pip install --progress-bar off -c "$constraints" "$@" >"$log" 2>&1 && return
    echo "Cannot install $*. pip says:" >&2
    awk '/^ *(ERROR|error|Traceback)/ { on = 1 } on || /^WARNING/' "$log" | tail -n 30 >&2
    echo "All of its output is in $log." >&2
    exit 1
}

has_gpu() {
    command -v nvidia-smi >/dev/null || [ -e /proc/driver/nvidia ] || [ -e /dev/nvidia0 ] ||
        [ -e /usr/lib/wsl/lib/nvidia-smi ]
}

# Neither a broken connection nor a network that drops packets may stop the newcomer for more than some seconds.
cpu_build_exists() {
    timeout 15 "$venv/bin/python" -m pip index versions torch --extra-index-url "$index" --retries 0 --timeout 4 \
        2>/dev/null | grep -qF "$torch+cpu"
}

install_torch() {
    torch=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$constraints")
    now=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || true)
    case $now in "$torch" | "$torch"+*) return ;; esac # also a build that the user chose
    if [ "$(uname -s)" = Linux ]; then
        if [ -z "$index" ]; then
            why="TORCH_CPU_INDEX is empty"
        elif has_gpu; then
            why="this machine has an NVIDIA GPU"
        else
            echo "No NVIDIA GPU here: asking $index for PyTorch's CPU build (0.2 GB) ..."
            if cpu_build_exists && pip install --no-deps --progress-bar off --extra-index-url "$index" --retries 1 \
                --timeout 10 "torch==$torch+cpu" >"$log" 2>&1; then
                echo "Installed it. TORCH_CPU_INDEX= make ... takes the build for GPUs."
                return
            fi
            why="the CPU build cannot be had from $index"
        fi
        echo "Downloading PyTorch with CUDA, up to 5 GB, which takes minutes: $why."
    fi
    install torch
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "reverie needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1 || echo missing)." >&2
    echo "Name another one: make PYTHON=python3.12 ..." >&2
    exit 1
fi
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    # Debian packs venv apart from Python: without it, virtualenv from the package index does the same.
    if ! why=$("$python" -m venv "$venv" 2>&1); then
        rm -rf "$venv"
        if ! { "$python" -m pip install --quiet --user --break-system-packages virtualenv &&
            "$python" -m virtualenv --quiet "$venv"; }; then
            echo "$why" >&2
            echo "Cannot make a virtual environment: install Debian's python3-venv (apt install python3-venv)." >&2
            exit 1
        fi
    fi
fi
[ -n "$extras" ] || exit 0
echo "Setting up $venv (a minute or two, once) ..."
install_torch # first: which build it is decides what else comes along
install -e ".[$extras]"
