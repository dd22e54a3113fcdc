"""The real images on a real engine: `make image-test`, or for one image `IMAGES=h100`.

Both Dockerfiles are built with their real locks, on the stand-in for the CUDA base, and then run.
`scripts/engine.sh` gives the engine and clears up. All tests of one image come before the other is
built, and the first one's disk is given back between them: a build takes 20 GB with its caches.
`make test` leaves these tests out, and says so.
"""
