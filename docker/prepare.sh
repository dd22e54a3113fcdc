#!/bin/sh
# Lets the boot write its report folder. compose.yaml runs this before each boot, as root with two
# rights of root only: to change owners (CHOWN), and modes of what others own (FOWNER).
#
# Docker makes a missing ./reports as root:root 0755, and a folder that was there belongs to whoever
# made it. The boot runs as any uid with group 0. So the folder, and previous/ in it, get group 0
# with all rights; what people could do there they still can, and files stay as they are. One line
# says what was changed. Where nothing can or should be changed the boot itself judges the folder
# (73): this script ends with 0 always.
#
# A link is never followed. One that is put there between the look and the change leads nowhere that
# matters: but for the report folder, all that this container sees is read-only.
set -u

reports=/reports
project=/project # whose it is, and nothing else of it
uid=${BOOTGUARD_UID:-10001}
named=${BOOTGUARD_REPORTS:-} # empty for ./reports
opened=''

say() {
    echo "prepare: $*" >&2
}

# Owner, group and mode of a folder, into variables of these names.
look() {
    [ -d "$1" ] && [ ! -L "$1" ] || return 1
    seen=$(stat -c '%u %g 0%a' "$1" 2>/dev/null) || return 1
    owner=${seen%% *} mode=${seen##* }
    group=${seen#* } group=${group% *}
}

is_empty() {
    [ -z "$(ls -A "$1" 2>&1)" ] # what cannot be listed is not empty
}

# A folder that was named, or that a link leads to, may be anything (a home folder, /tmp): only one that
# is empty, or has reports in it, is meant for them alone.
is_for_reports() {
    is_empty "$reports" || [ -d "$reports/previous" ] || ls "$reports"/boot-report*.json >/dev/null 2>&1
}

# Whether the boot can write there: the kernel asks the first of these three that applies.
is_open() {
    if [ "$owner" = "$uid" ]; then
        rights=$((mode >> 6))
    elif [ "$group" = 0 ]; then
        rights=$((mode >> 3))
    else
        rights=$mode
    fi
    [ $((rights & 7)) -eq 7 ]
}

# Whether the owner himself cannot write there, and so wants nothing written.
is_closed() {
    [ $((mode >> 6 & 7)) -ne 7 ]
}

# Whether another group would take rights from people. A group with its user's number is his alone.
is_shared() {
    [ "$group" != 0 ] && [ "$group" != "$owner" ] && [ $((mode >> 3 & 7 & ~mode)) -ne 0 ]
}

# What Docker has just made in the project is for whoever the project belongs to: so that he can
# remove it, and boot without Docker. He could put a folder of his own in its place anyway.
give_to_project() {
    [ -z "$named" ] && look "$project" && to=$owner && [ "$to" != 0 ] || return 0
    if look "$reports" && ! is_closed && [ "$owner:$group" = 0:0 ] && is_empty "$reports"; then
        chown -h "$to" "$reports" 2>/dev/null
    fi
}

# previous/ as the boot makes it would be the boot's, and the owner of the report folder could not
# remove what is in it.
give_previous() {
    look "$reports" && is_open && [ "$owner" != "$uid" ] && [ "$owner" != 0 ] || return 0
    to=$owner
    mkdir "$reports/previous" 2>/dev/null
    if look "$reports/previous" && [ "$owner" != "$to" ]; then
        chown -h "$to" "$reports/previous" 2>/dev/null
    fi
}

open_up() {
    if ! look "$1" || is_open || is_closed; then
        return
    elif is_shared; then
        say "$1 is left as it is, for its group $group: set BOOTGUARD_UID=$owner, its owner"
    elif why=$({ [ "$group" = 0 ] || chgrp -h 0 "$1"; } 2>&1 && chmod g+rwx "$1" 2>&1); then
        opened="$opened $1"
    else
        say "$1 is left as it is: $why"
    fi
}

if ! is_for_reports; then
    say "${named:-./reports} is left as it is: no report is to be seen in it, and it is not empty"
    exit 0
fi
give_to_project
open_up "$reports"
give_previous
open_up "$reports/previous"
[ -z "$opened" ] || say "group 0, which the boot runs in, can now write$opened"
exit 0
