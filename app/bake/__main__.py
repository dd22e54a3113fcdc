"""`python -m app.bake`: see `app.bake.command`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # the proof leaves one file behind, and no other
    # As in `app.boot`: what lies in the working folder must not shadow a module.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    from app.bake.command import cli

    sys.exit(cli(prog_name="python -m app.bake", obj=dict(os.environ)))
