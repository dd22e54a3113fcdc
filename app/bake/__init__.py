"""The proof at build time: an image holds what it says, or its build fails.

`python -m app.bake` runs at the end of an image's build (docker/finish.sh). It needs no GPU and no
network, and writes `image.json` (`app.image`) when every proof of `app.bake.proofs` holds.
"""
