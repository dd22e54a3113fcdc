# shellcheck shell=bash
# For engine.sh: programs that the machine lacks, from its own package source, unpacked into $tools.
# Nothing is installed: no script of a package runs, and apt's own files stay as they are.

# What engine.sh has set.
: "${folder:=}" "${tools:=}" "${private:=}" "${user_config:=}" "${compose_least:=}" "${base:=}"

# The machine's own apt settings and sources but for its hooks, in a folder of their own; on
# Debian 12, whose Compose is the old one, the next release beside it.
own_apt() {
    local etc=$folder/apt/etc codename='' id=''
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
    cp -r /etc/apt "$etc"
    find "$etc/sources.list.d" "$etc/preferences.d" -type f \
        ! -name debian.sources ! -name ubuntu.sources -delete
    # shellcheck source=/dev/null
    eval "$(. /etc/os-release && printf 'id=%q codename=%q' "${ID:-}" "${VERSION_CODENAME:-}")"
    if [[ $id/$codename == debian/bookworm ]]; then
        next_release "$etc" bookworm trixie
    fi
    mkdir -p "$etc/apt.conf.d"
    cat >"$etc/apt.conf.d/zz-private" <<CONF
#clear APT::Update;
#clear DPkg;
Dir::State::lists "$folder/apt/lists";
Dir::Cache "$folder/apt/cache";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
    printf 'Dir::Etc "%s";\n' "$etc" >"$folder/apt/apt.conf"
    export APT_CONFIG=$folder/apt/apt.conf
    apt-get update --quiet=2 >"$folder/apt/log" 2>&1 ||
        none "apt-get update failed: $(grep -m 1 '^E:' "$folder/apt/log" || tail -n 1 "$folder/apt/log")"
}

# next_release ETC THIS NEXT: the lines of this release once more for the next one, pinned low.
next_release() {
    local sources=$1/sources.list.d/debian.sources
    if [[ -f $sources ]]; then
        sed -e '/^#/d' -e "s/^Suites:.*/Suites: $3/" "$sources" | awk -v RS= 'NR == 1' \
            >"$1/sources.list.d/next.sources"
    elif [[ -f $1/sources.list ]]; then
        sed -n "s/^\(deb .*\) $2 /\1 $3 /p" "$1/sources.list" | head -n 1 >"$1/sources.list.d/next.list"
    fi
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 50\n' "$3" >"$1/preferences.d/next"
}

# unpack HOW PACKAGE...: with what they need and the machine lacks (install), or alone (download).
unpack() {
    local how=$1 archive into=$folder/apt/cache/archives
    shift
    say "fetching $* ..."
    if [[ $how == install ]]; then
        apt-get install --quiet=2 --yes --download-only "$@" >"$folder/apt/log" 2>&1
    else
        (cd "$into" && apt-get download --quiet=2 "$@") >"$folder/apt/log" 2>&1
    fi || none "apt-get has no $*: $(tail -n 1 "$folder/apt/log")"
    for archive in "$into"/*.deb; do
        if [[ -f $archive ]]; then dpkg-deb --extract "$archive" "$tools"; fi
    done
    rm -f "$into"/*.deb
}

has() { command -v "$1" >/dev/null; }

get_packages() {
    local wanted=() program
    for program in docker dockerd containerd runc docker-init; do
        if [[ -n $private ]] && ! has "$program"; then wanted=(docker.io); fi
    done
    if [[ -n $private ]] && ! has ip; then wanted+=(iproute2); fi
    if [[ -n $private && $(cat /sys/module/apparmor/parameters/enabled 2>/dev/null) == Y ]]; then
        has apparmor_parser || wanted+=(apparmor)
    fi
    if [[ -z $private ]] && base_there; then :; elif ! has debootstrap; then wanted+=(debootstrap); fi
    if ((${#wanted[@]})); then
        apt_or_none "${wanted[*]}"
        unpack install "${wanted[@]}"
    fi
    get_plugins
}

apt_or_none() {
    [[ -z ${APT_CONFIG:-} ]] || return 0
    ((EUID == 0)) || none "$1 missing, and only root can get it"
    if ! has apt-get || ! has dpkg-deb; then none "$1 missing, and there is no apt-get to get it"; fi
    own_apt
}

base_there() { docker image inspect "$base" >/dev/null 2>&1; }

# Compose and buildx: those that the client already finds, else unpacked.
get_plugins() {
    local plugin wanted=() version own=$DOCKER_CONFIG/cli-plugins
    mkdir -p "$own"
    for plugin in "$user_config"/cli-plugins/docker-{compose,buildx}; do
        # A copy: a test calls Compose as a user who cannot look into this one's home.
        if [[ -x $plugin ]]; then install -m 755 "$plugin" "$own/"; fi
    done
    version=$(docker compose version --short 2>/dev/null || true)
    if ! printf '%s\n' "$compose_least" "${version#v}" | sort --check=quiet --version-sort; then
        wanted+=(compose)
    fi
    docker buildx version >/dev/null 2>&1 || wanted+=(buildx)
    for plugin in "${wanted[@]}"; do
        apt_or_none "the Docker plugin $plugin"
        unpack download "$(plugin_package "$plugin")"
        rm -f "$own/docker-$plugin"
        ln -s "$(find "$tools" -path "*/cli-plugins/docker-$plugin" | head -n 1)" "$own/docker-$plugin"
    done
}

# plugin_package NAME: the package, in the release that has a new one.
plugin_package() {
    if [[ -e $folder/apt/etc/preferences.d/next ]]; then
        printf 'docker-%s/trixie' "$1"
    elif [[ $1 == compose ]] && apt-cache show docker-compose-v2 >/dev/null 2>&1; then
        printf 'docker-compose-v2' # Ubuntu's name
    else
        printf 'docker-%s' "$1"
    fi
}
