#!/bin/sh
# apt.sh LIST...: installs what the lists name, and leaves no package index or log behind.
set -eu

# The base leaves its own source behind: nothing is taken from there, and it may not be reachable.
rm -f /etc/apt/sources.list.d/cuda*
packages=$(sed 's/#.*//' "$@")
apt-get update --quiet=2
# shellcheck disable=SC2086 # one word a package
DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $packages
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/apt /var/cache/ldconfig /var/log/apt /var/log/dpkg.log \
    /var/log/alternatives.log /var/cache/debconf/*-old
