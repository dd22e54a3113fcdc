#!/bin/sh
# install.sh LOCK PROFILE: makes /opt/bootguard/venv from a lock, without what no boot touches, and
# /srv with the build's own tools, which is not in the image.
# The index may be another one: a build secret named `index` holds its address, which may carry a
# password and is in no layer and no history.
set -eu

here=$(dirname "$0")
lock=$1 profile=$2
venv=/opt/bootguard/venv
tools=/srv
if [ -s /run/secrets/index ]; then
    UV_DEFAULT_INDEX=$(cat /run/secrets/index)
    PIP_INDEX_URL=$UV_DEFAULT_INDEX
    export UV_DEFAULT_INDEX PIP_INDEX_URL
fi
# The system's certificates, which a base of one's own can extend; not the ones uv brings.
export UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=300 UV_LINK_MODE=copy UV_NO_PROGRESS=1
export SSL_CERT_FILE="${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
export PIP_CERT="${PIP_CERT:-$SSL_CERT_FILE}"

python3 -m venv "$tools"
"$tools/bin/python" -m pip --disable-pip-version-check --quiet --no-input install \
    --require-hashes --only-binary :all: --requirement "$here/requirements.uv.txt" \
    --requirement "$here/requirements.build.txt"
"$tools/bin/uv" venv --quiet --no-python-downloads --python "$(command -v python3)" "$venv"
"$tools/bin/uv" pip install --quiet --python "$venv/bin/python" --no-build --require-hashes \
    --requirement "$here/requirements.$lock.txt"
"$venv/bin/python" "$here/slim.py" "$lock" "$profile"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo /opt/bootguard >"$site/bootguard.pth"
rm -f "$venv/.lock" # uv's, and for everybody to write

# One date for all files, so that the same lock gives the same layers; bytecode is valid for the date
# that its source has. A compiler that finds a file it cannot compile (templates) says so and goes on.
stamp() { find "$@" -exec touch --no-dereference --date=@1767225600 {} +; }
stamp "$venv"
"$venv/bin/python" -m compileall -q -j 0 "$site" >/dev/null || true
stamp "$venv"

# What changes with CUDA only is a layer of its own: another transformers moves 0.3 GB, not 3.
cuda=/layers/cuda$site
for part in nvidia torch/lib triton/_C triton/backends/nvidia/bin triton/backends/nvidia/lib; do
    mkdir -p "$(dirname "$cuda/$part")"
    mv "$site/$part" "$cuda/$part"
done
mkdir -p /layers/python/opt/bootguard
mv "$venv" /layers/python/opt/bootguard/
stamp /layers
