"""On the path of whole boots that are to be quick: see `sitecustomize` and `tests.boots`."""
