#!/usr/bin/env bash
# A Docker engine for a command, and afterwards none:
#   engine.sh run COMMAND...   with DOCKER_HOST, DOCKER_CONFIG and the stand-in base image
#   engine.sh prune            inside such a command: remove the build cache that it made
# The engine that answers is used, and what the command made in it is removed in the end. Where none
# answers, root on Debian or Ubuntu gets a private one. Its packages are unpacked and not installed;
# it has a mount namespace, a socket and a data folder of its own, writes no firewall rule, and the
# folder goes with it, also after a failure or a signal. Builds in it need `--network=host`.
# Exit status: the command's; 69 with one line of reason where no engine can be had.
set -euo pipefail
umask 022
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly base=bootguard/standin-base:test # tests/containers/engine.py
readonly label=bootguard.test=image       # tests/image/engine.py puts it on all that it makes
readonly compose_least=2.24.4             # reads `!reset`
readonly free_least_gb=35                 # an image, the cache of its build, and a margin
readonly bridges=bgengine                 # and the number of this process
readonly engine_s=90                      # an engine to come up on a busy machine

# shellcheck source=scripts/engine_packages.sh
source scripts/engine_packages.sh

say() { printf '%s\n' "$*" >&2; }
none() {
    say "no Docker engine: $*"
    exit 69
}

# `ip link`, which may be an unpacked one.
link() { LD_LIBRARY_PATH=$libraries ip link "$@"; }
answers() { timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# -- what is left behind by a run that was killed, and by this one

# The name of a private folder holds its owner's process id.
stale() {
    local folder owner
    for folder in .cache/engine.* /var/tmp/bootguard-engine.* /tmp/bootguard-engine.*; do
        owner=${folder##*.}
        if [[ -d $folder && -O $folder && ! -L $folder && $owner =~ ^[0-9]+$ && ! -d /proc/$owner ]]; then
            say "removing $folder, left by a run that was killed"
            rm -rf --one-file-system "$folder"
        fi
    done
    for folder in /sys/class/net/"$bridges"*; do
        owner=${folder##*"$bridges"}
        if [[ -d $folder && ! -d /proc/$owner ]]; then link delete "$bridges$owner" || true; fi
    done
}

folders=()
dockerd='' bridge='' libraries='' child='' private='' base_made='' cache_before='' key_made=''

cleanup() {
    local code=$? left
    trap '' INT TERM HUP
    trap - EXIT
    set +e
    if [[ -n $child ]] && kill -0 "$child" 2>/dev/null; then
        kill -INT -- "-$child" 2>/dev/null # pytest tears down at an INT
        timeout 60 tail --pid="$child" -f /dev/null
        kill -KILL -- "-$child" 2>/dev/null
    fi
    if [[ -n $private ]]; then
        stop_engine
    elif [[ -n $cache_before ]]; then
        remove_made
    fi
    for left in "${folders[@]}"; do
        rm -rf --one-file-system "$left" || say "could not remove $left"
    done
    exit "$code"
}

stop_engine() {
    if [[ -n $dockerd ]] && kill -0 "$dockerd" 2>/dev/null; then
        # Bridges of networks that Compose made would stay.
        docker ps --all --quiet | xargs -r docker rm --force >/dev/null
        docker network prune --force >/dev/null
        kill -TERM "$dockerd"
        timeout 60 tail --pid="$dockerd" -f /dev/null || kill -KILL "$dockerd"
    fi
    if [[ -n $bridge ]]; then link delete "$bridge"; fi
    if [[ -n $key_made ]]; then # older engines write it wherever their other files are
        rm -f /etc/docker/key.json
        rmdir /etc/docker 2>/dev/null
    fi
}

# In an engine of somebody else's: by label, and by what the build cache did not hold before.
remove_made() {
    docker ps --all --quiet --filter "label=$label" | xargs -r docker rm --force --volumes >/dev/null
    docker volume ls --quiet --filter "label=$label" | xargs -r docker volume rm >/dev/null
    docker network ls --quiet --filter "label=$label" | xargs -r docker network rm >/dev/null
    docker images --quiet --filter "label=$label" | sort -u | xargs -r docker rmi --force >/dev/null
    if [[ -n $base_made ]]; then docker rmi "$base" >/dev/null; fi
    prune_cache
}

cache_records() { docker buildx du --verbose 2>/dev/null | sed -n 's/^ID:[[:space:]]*//p' | sort; }

# A record that another one was made from goes only after it.
prune_cache() {
    local made count=-1 record
    made=$(comm -13 "$cache_before" <(cache_records))
    while [[ -n $made && $(wc -l <<<"$made") -ne $count ]]; do
        count=$(wc -l <<<"$made")
        for record in $made; do
            docker builder prune --all --force --filter "id=$record" >/dev/null 2>&1 || true
        done
        made=$(comm -13 "$cache_before" <(cache_records))
    done
}

# -- a private engine

# find_folder: a place on a disk that has room and takes overlay mounts, in $folder.
find_folder() {
    local parent why='' free
    mkdir -p .cache
    for parent in "$PWD/.cache/engine" /var/tmp/bootguard-engine /tmp/bootguard-engine; do
        folder=$parent.$$
        mkdir -m 711 "$folder" 2>/dev/null || continue
        folders+=("$folder")
        free=$(df --output=avail --block-size=1G "$folder" | tail -n 1)
        if ((free < free_least_gb)); then
            why+="; ${parent%/*} has ${free// /} GB free of $free_least_gb"
        elif ! overlays "$folder"; then
            why+="; ${parent%/*} takes no overlay mount"
        else
            return 0
        fi
    done
    none "no place for its data${why}"
}

overlays() {
    mkdir -p "$1/try/"{lower,upper,work,merged}
    unshare --mount --propagation slave -- mount -t overlay overlay "$1/try/merged" -o \
        "lowerdir=$1/try/lower,upperdir=$1/try/upper,workdir=$1/try/work" 2>/dev/null
}

start_engine() {
    [[ -e /etc/docker/key.json ]] || key_made=yes
    local sockets=/tmp/bootguard-engine.$$ # a socket's path must be short
    if [[ $folder != "$sockets" ]]; then
        mkdir -m 711 "$sockets"
        folders+=("$sockets")
    fi
    export DOCKER_HOST=unix://$sockets/docker.sock
    echo '{}' >"$folder/daemon.json" # in place of the machine's own
    # No iptables, no forwarding, a bridge of its own: the machine's network stays as it is. (`none`
    # for a bridge would remove docker0, which an engine beside this one may have.) dockerd dies with
    # this script.
    bridge=$bridges$$
    link add name "$bridge" type bridge || none "no network bridge can be made"
    LD_LIBRARY_PATH=$libraries setsid unshare --mount --propagation slave -- bash -c '
        # A machine without an init system may have no control groups mounted.
        grep -q " cgroup2\? " /proc/self/mounts || mount -t cgroup2 cgroup2 /sys/fs/cgroup
        exec setpriv --pdeathsig TERM -- "$@"' engine \
        dockerd --host "$DOCKER_HOST" --data-root "$folder/data" --exec-root "$sockets/exec" \
        --pidfile "$sockets/dockerd.pid" --config-file "$folder/daemon.json" \
        --storage-driver overlay2 --bridge "$bridge" --iptables=false --ip6tables=false \
        --ip-forward=false --ip-masq=false --userland-proxy=false \
        --init-path "$(command -v docker-init)" \
        </dev/null >"$folder/dockerd.log" 2>&1 &
    dockerd=$!
    local i
    for ((i = 0; i < engine_s; i++)); do
        if answers; then return 0; fi
        kill -0 "$dockerd" 2>/dev/null || break
        sleep 1
    done
    none "dockerd did not come up: $(grep -v level=info "$folder/dockerd.log" | tail -n 3 | tr '\n' ' ')"
}

make_base() {
    if base_there; then return 0; fi
    ((EUID == 0)) || none "no image $base, and only root can make it"
    say "making $base: a minute ..."
    base_made=yes
    mkdir -p "$folder/tmp"
    # In a mount namespace of its own: an interrupted debootstrap leaves no /proc behind.
    DEBOOTSTRAP_DIR=$debootstrap TMPDIR=$folder/tmp LD_LIBRARY_PATH=$libraries \
        unshare --mount --propagation slave -- "$python" -m tests.containers \
        >"$folder/base.log" 2>&1 ||
        none "$base could not be made: $(tail -n 3 "$folder/base.log" | tr '\n' ' ')"
}

run() {
    local user_config=${DOCKER_CONFIG:-${HOME:-/root}/.docker}
    local tools python debootstrap=/usr/share/debootstrap
    stale
    trap cleanup EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    if answers; then
        folder=$(mktemp -d) && folders+=("$folder")
        chmod 711 "$folder" # a test calls Compose as another user
        DOCKER_HOST=${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}')}
        export DOCKER_HOST
    else
        ((EUID == 0)) || none "none answers, and only root can start one"
        private=yes
        find_folder
    fi
    tools=$folder/tools
    libraries=$tools/usr/lib/x86_64-linux-gnu:$tools/lib/x86_64-linux-gnu:$tools/usr/lib
    export DOCKER_BUILDKIT=1 # older clients have another builder of their own
    export PATH=$PATH:$tools/usr/bin:$tools/usr/sbin:$tools/bin:$tools/sbin:/usr/sbin:/sbin
    export DOCKER_CONFIG=$folder/config
    get_packages
    if [[ -d $tools/usr/share/debootstrap ]]; then debootstrap=$tools/usr/share/debootstrap; fi
    python=.venv/bin/python
    [[ -x $python ]] || python=python3
    if [[ -n $private ]]; then
        start_engine
    else
        cache_before=$folder/cache-before
        cache_records >"$cache_before"
    fi
    export BOOTGUARD_ENGINE_CACHE=$cache_before
    make_base
    docker run --rm --network none --label "$label" "$base" true 2>"$folder/smoke" ||
        none "the engine runs no container: $(tail -n 1 "$folder/smoke")"
    # In a process group of its own, so that a signal ends it before the engine.
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    local code=0
    wait "$child" || code=$?
    child=''
    exit "$code"
}

case ${1:-} in
    run)
        shift
        (($#)) || { say "usage: scripts/engine.sh run COMMAND... | prune" && exit 64; }
        run "$@"
        ;;
    prune)
        cache_before=${BOOTGUARD_ENGINE_CACHE:-}
        if [[ -n $cache_before ]]; then
            prune_cache
        else # a private engine
            [[ ${DOCKER_HOST:-} == unix:///tmp/bootguard-engine.* ]] || exit 64
            docker builder prune --all --force >/dev/null
        fi
        ;;
    *)
        say "usage: scripts/engine.sh run COMMAND... | prune"
        exit 64
        ;;
esac
