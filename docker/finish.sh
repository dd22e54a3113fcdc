#!/bin/sh
# finish.sh PROFILE BASE BASE_DIGEST REVISION: the last step of a build, in the image itself: folders,
# bytecode, the proof with image.json, and the list of what is inside.
set -eu

profile=$1 base=$2 digest=$3 revision=$4
# The label says the digest, and a Dockerfile cannot cut it out of the base's name.
case $base in
    *"@$digest") ;;
    *@*)
        echo "BASE_IMAGE is $base and BASE_DIGEST is $digest: pass both build arguments" >&2
        exit 1
        ;;
    *) echo "BASE_IMAGE is $base, without a digest: the label base.digest is not of this base" >&2 ;;
esac

here=$(dirname "$0")
root=/opt/bootguard
# Any uid may write its caches; a report folder is mostly mounted over.
install -d -m 1777 /cache /models
install -d -m 0775 /reports /workspace
# A checkout made under a strict umask is copied with modes that only root can read.
chmod -R a+rX,go-w "$root/app" "$root/prepare.sh" "$root/requirements.txt"
"$root/venv/bin/python" -m compileall -q "$root/app"
"$root/venv/bin/python" -m app.bake --profile "$profile" --lock "$root/requirements.txt" \
    --base "$base" --revision "$revision"
/srv/bin/python "$here/sbom.py" --output "$root/sbom.cdx.json"
