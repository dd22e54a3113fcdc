"""Frozen facts, gathered by `app.probes` and `app.engine`, judged by `app.checks`.

Leaves: stdlib only, no torch, one module per stage.
"""
