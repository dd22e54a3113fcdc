"""Makes the stand-in image, by debootstrap from the machine's own package source; needs root."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.containers.engine import IMAGE

# What the CUDA base images have too: an interpreter of their own, a C compiler, an init.
_PACKAGES = "ca-certificates,python3,python3-venv,python3-dev,gcc,libc6-dev,tini"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")


def _mirror() -> list[str]:
    """Where this machine's packages come from; nothing for debootstrap's own choice."""
    lines = _SOURCES.read_text(encoding="utf-8").splitlines() if _SOURCES.is_file() else []
    return [line.split()[1] for line in lines if line.startswith("URIs:")][:1]


def main() -> None:
    """Bootstrap a small Debian, and import it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "rootfs"
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm"]
        subprocess.run([*command, str(root), *_mirror()], check=True)
        # Base images come without them, and they would count as the built images' size.
        for left in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*"):
            for path in root.glob(left):
                path.unlink()
        # A machine behind a proxy has a certificate authority of its own.
        (root / _CERTIFICATES).write_bytes((Path("/") / _CERTIFICATES).read_bytes())
        # The interpreter that is mounted may lie below root's home, and other uids run it too.
        (root / "root").chmod(0o755)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            change = f"ENV SSL_CERT_FILE=/{_CERTIFICATES}"
            command = ["docker", "import", "--change", change, "-", IMAGE]
            subprocess.run(command, stdin=tar.stdout, check=True)
        if tar.returncode:
            raise SystemExit(f"tar ended with {tar.returncode}")
    sys.stdout.write(f"{IMAGE} is there\n")


if __name__ == "__main__":
    main()
