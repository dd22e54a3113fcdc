#!/usr/bin/env bash
# Makes the environments from the hash-pinned locks, and only what is missing:
#   env.sh tools   .cache/tools: uv and packaging, which make the rest
#   env.sh run     .venv: the locked H100 set and nothing else
#   env.sh dev     .venv: the dev set beside it, for tests and checks
# A stamp inside each environment, written last, holds the digest of its lock; an
# environment whose stamp does not match, or that was interrupted, is made anew.
# PYTHON=... names the interpreter; without it the newest usable one is taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly tools=.cache/tools venv=.venv
readonly interrupted=$venv/.adding-dev # half a package may lie in the environment
readonly heartbeat_s=15

say() { printf '%s\n' "$*" >&2; }
digest() { sha256sum "docker/requirements.$1.txt" | cut -d ' ' -f 1; }

# An interpreter counts when it runs and can make environments: a pyenv shim may exist
# and fail, and Debian ships Python without ensurepip.
probe='import sys, ensurepip, venv
if sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info[:2] < (3, 13):
    sys.exit(1)
print(sys.executable)'

# Leaves the interpreter's path in $python.
python=''
find_python() {
    local candidate
    if [[ -n $python ]]; then return; fi
    for candidate in ${PYTHON:-python3.12 python3.11 python3}; do
        if python=$("$candidate" -c "$probe" 2>/dev/null); then
            say "using $candidate: $python ($("$python" -c 'import platform; print(platform.python_version())'))"
            return
        fi
    done
    say "no usable Python among: ${PYTHON:-python3.12 python3.11 python3}"
    say "needed: CPython 3.11 or 3.12 with venv and ensurepip (on Debian and Ubuntu: the package python3-venv)"
    say "name another one with PYTHON=/path/to/python3.12"
    return 1
}

# current ENVIRONMENT STAMP SET: the environment runs and was made from this very lock.
current() {
    [[ -f $1/$2 && $(<"$1/$2") == "$(digest "$3")" ]] && "$1/bin/python" -c '' 2>/dev/null
}

# The right Python version too, where one was asked for by name.
wanted_python() {
    local version='import sys; print(sys.version_info[:2])'
    [[ -z ${PYTHON:-} || $("$venv/bin/python" -c "$version") == $("$PYTHON" -c "$version" 2>/dev/null) ]]
}

beat=''
trap '[[ -z $beat ]] || kill "$beat" 2>/dev/null || true' EXIT

# announced TEXT COMMAND...: say what starts, that it still runs, and how long it took.
announced() {
    local text=$1 started=$SECONDS
    shift
    say "$text ..."
    # Nothing but `say` may hold our output: an orphaned sleep would keep a pipe open.
    while sleep "$heartbeat_s" 2>/dev/null && kill -0 "$$" 2>/dev/null; do
        say "  ... $((SECONDS - started)) s"
    done </dev/null >/dev/null &
    beat=$!
    if ! "$@"; then
        say "failed after $((SECONDS - started)) s: $text"
        say "mend what is said above and run the same command again: what is downloaded is kept"
        return 1
    fi
    kill "$beat" 2>/dev/null || true
    beat=''
    say "  done in $((SECONDS - started)) s"
}

make_tools() {
    rm -rf "$tools" && "$python" -m venv "$tools" &&
        "$tools/bin/python" -m pip --disable-pip-version-check --quiet --no-input install \
            --require-hashes --only-binary :all: --requirement docker/requirements.uv.txt
}

ensure_tools() {
    if current "$tools" .lock-uv uv; then return; fi
    find_python
    announced "installing uv from its lock into $tools (20 MB to download, once)" make_tools
    digest uv >"$tools/.lock-uv"
}

install() {
    "$tools/bin/uv" pip install --quiet --python "$venv/bin/python" --no-build --require-hashes \
        --requirement "docker/requirements.$1.txt"
}

make_run() {
    "$tools/bin/uv" venv --quiet --clear --no-python-downloads --python "$python" "$venv" &&
        install h100 && link_app
}

# `python -m app.boot` and `from app import boot_gemma` work from every folder.
link_app() {
    "$venv/bin/python" -c 'import os, sysconfig
with open(os.path.join(sysconfig.get_path("purelib"), "bootguard.pth"), "w", encoding="utf-8") as file:
    file.write(os.getcwd() + "\n")'
}

ensure_run() {
    if [[ ! -e $interrupted ]] && current "$venv" .lock-run h100 && wanted_python; then return; fi
    ensure_tools
    find_python
    announced "installing the locked H100 set into $venv (about 3.3 GB to download, once)" make_run
    digest h100 >"$venv/.lock-run"
}

ensure_dev() {
    ensure_run
    if current "$venv" .lock-dev dev; then return; fi
    ensure_tools
    touch "$interrupted"
    announced "adding the locked dev set to $venv" install dev
    digest dev >"$venv/.lock-dev"
    rm "$interrupted"
}

# uv honours SSL_CERT_FILE and the proxy variables; pip's own index setting it does not read.
if [[ -n ${PIP_INDEX_URL:-} ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300}

case ${1:-} in
    tools) ensure_tools ;;
    run) ensure_run ;;
    dev) ensure_dev ;;
    *)
        say "usage: scripts/env.sh tools | run | dev"
        exit 64
        ;;
esac
