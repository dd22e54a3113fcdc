"""The proof at build time: an image holds what it says, or its build fails.

`python -m app.bake` is the last step of an image's build. It needs no GPU and no network, and
writes `image.json` (`app.image`) when every proof of `app.bake.proofs` holds.
"""
