"""The proofs of issue 6 on a real card: any visible device of a profile's compute capability.

`make gpu-test`, or `python -m pytest tests/gpu` with any Python that has torch, transformers, peft
and bitsandbytes for CUDA; boots want Unsloth too. Nothing is downloaded. What a boot only warns of
fails here. BOOT_BASE_MODEL_ID, with other settings beside it as a boot reads them, adds a real
model that lies on this machine.

BOOTGUARD_GPU_TESTS_ON=v100 (or another profile) is the suite's own check: the same tests in host
memory, in that profile's types, on a machine without a card. It proves nothing about one.
"""
