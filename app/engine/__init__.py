"""The only place that imports torch or Unsloth: load, census, adapter, numbers."""
