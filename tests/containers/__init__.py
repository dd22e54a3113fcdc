"""Boots in real containers, by the Docker engine of this machine; `tests/test_containers*.py`.

No image with torch is built: the repository, its virtual environment and the interpreter are
mounted read-only, at the paths that they have here, into a small stand-in for the CUDA base image.
A container has no network, a tmpfs as /tmp, and a writable folder for reports, which the test
watches from outside.

How to run them, as root on Debian or Ubuntu (x86-64), whether an engine is there or not:

    scripts/engine.sh run make test ARGS="-k containers"

Where no engine answers or the stand-in is missing, the tests are skipped and say so.
"""
