#!/bin/sh
# Make a virtual environment and install the library into it, with the tested versions or those of another file.
#   tools/venv.sh PYTHON FOLDER EXTRAS [CONSTRAINTS]
set -eu
python=$1 venv=$2 extras=$3 constraints=${4:-constraints.txt}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "reverie needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1 || echo missing)." >&2
    echo "Name another one: make PYTHON=python3.12 ..." >&2
    exit 1
fi
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    # Debian packs venv apart from Python: without it, virtualenv from the package index does the same.
    if ! "$python" -m venv "$venv" 2>/dev/null; then
        rm -rf "$venv"
        if ! { "$python" -m pip install --quiet --user --break-system-packages virtualenv &&
            "$python" -m virtualenv --quiet "$venv"; }; then
            echo "Cannot make a virtual environment: install Debian's python3-venv (apt install python3-venv)." >&2
            exit 1
        fi
    fi
fi
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check -c $constraints"
# PyTorch first and by itself: its version decides whether a small CPU build or gigabytes of CUDA come along.
echo "Setting up $venv (a minute or two, once) ..."
$pip torch
$pip -e ".[$extras]"
