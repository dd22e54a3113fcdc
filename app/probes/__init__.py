"""Impure and torch-free: everything that looks at the machine, and returns frozen facts."""
