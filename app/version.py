"""The version of the project, as `pyproject.toml` has it (a test compares them)."""

__version__ = "0.1.0"
