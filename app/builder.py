"""Runs a module that builds something, as a process that dies with its parent.

`python -P -m app.builder PARENT MODULE DEST`: tied to the parent before the module imports torch,
which takes seconds.
"""

from __future__ import annotations

import runpy
import sys

from app.lifeline import die_with

if __name__ == "__main__" and die_with(int(sys.argv[1])):
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
