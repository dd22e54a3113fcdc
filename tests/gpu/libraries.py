"""Says on its last line, as JSON, why torch and bitsandbytes do not compute on a device here."""

from __future__ import annotations

import importlib
import json
import sys


def problem() -> str:
    """Empty where they do."""
    for name in ("torch", "transformers", "peft", "bitsandbytes"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"no {name}: {error}"
    import torch
    from bitsandbytes import cextension

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no device"
    if not cextension.lib.compiled_with_cuda:
        why = " ".join(str(vars(cextension.lib).get("error_msg", "")).split())
        return f"bitsandbytes has no CUDA library here: {why or type(cextension.lib).__name__}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(problem()) + "\n")
