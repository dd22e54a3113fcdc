"""The account of a uid, and a name for one that has none. Standard library only."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

# What `getpass.getuser` reads, before it asks the account database.
_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def account_home(uid: int) -> str | None:
    """The home folder of an account, None for a uid without a passwd entry."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return None


def home_named(name: str) -> str | None:
    """The home folder of an account by its name."""
    try:
        return pwd.getpwnam(name).pw_dir
    except (KeyError, ValueError):  # a NUL byte
        return None


def user_name(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that name a uid without a passwd entry, where no variable does.

    torch asks `getpass.getuser` for folders below the shared /tmp (2.10 while it is imported), and
    that raises where nobody knows. Hence a name that differs by uid, and is no account's that
    exists: `root` or `nobody` would be a lie.
    """
    if any(environ.get(name) for name in _USER_NAMES) or account_home(os.getuid()) is not None:
        return {}
    return dict.fromkeys(("LOGNAME", "USER"), f"uid{os.getuid()}")
