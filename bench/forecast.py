"""The forecast of memory against a real load on this CPU, by part.

`.venv/bin/python -P -m bench.forecast FOLDER [--tokens 512] [--steps 2] [--16bit] [--checkpointing
true|false]` loads the model in this folder through the product's loader, attaches the adapter and
trains a few plain steps. It prints one line of JSON: forecast and measured bytes of what can be
counted tensor by tensor, and anonymous memory (which no kernel takes back) after every part.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.config import ModelRequest
from app.facts.forecast import ForecastFacts, make_forecast
from app.facts.host import MemoryFacts
from app.plan import Plan, Resolved
from app.probes.safetensors import read_checkpoint
from app.profiles import CPU

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int64": 8, "bool": 1}
_EVERY_S = 0.005


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """The most that was seen while the block ran."""
    most, done = [anonymous_bytes()], threading.Event()

    def look() -> None:
        while not done.wait(_EVERY_S):
            most[0] = max(most[0], anonymous_bytes())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        done.set()
        thread.join()


def counted(model: Any) -> Counter[str]:  # noqa: ANN401 - a torch module
    """Bytes of every parameter and scale, each tensor once, by the census' category."""
    from app.engine import census

    seen: set[str] = set()
    found: Counter[str] = Counter()
    tied = {id(p): name for name, p in model.named_parameters()}
    names = set(tied.values())
    for tensor in census.take(model).tensors:
        again = tensor.name in seen or (tensor.kind == "parameter" and tensor.name not in names)
        if again or (tensor.kind == "buffer" and not tensor.persistent):
            continue
        seen.add(tensor.name)
        label = "buffers" if tensor.kind == "buffer" else tensor.category
        found[label] += tensor.numel * _BYTES[tensor.dtype]
    return found


def expected(forecast: ForecastFacts) -> dict[str, tuple[int, int]]:
    """Bounds of each part on the device."""
    return {
        part.name: (part.low_bytes, part.high_bytes)
        for part in forecast.parts
        if part.place == "device"
    }


def train(model: Any, tokens: int, steps: int) -> None:  # noqa: ANN401 - a torch module
    """Plain steps on random ids: no fused loss, so that all logits are held."""
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    ids = torch.randint(10, 200, (1, tokens))
    model.train()
    for _ in range(steps):
        model(input_ids=ids, labels=ids.clone(), use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    """Forecast, load, attach, train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--16bit", dest="plain", action="store_true")
    parser.add_argument("--checkpointing", choices=("true", "false"), default="true")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    request = replace(
        ModelRequest(base_model_id=str(folder), max_seq_length=asked.tokens),
        load_in_4bit=not asked.plain,
        use_gradient_checkpointing=asked.checkpointing == "true",
    )
    plan = Plan(CPU, request, Path("reports"), resolved=Resolved(str(folder), None, folder, ""))
    checkpoint = read_checkpoint(folder)
    host = MemoryFacts(total_bytes=1 << 50, available_bytes=1 << 50)
    facts = make_forecast(plan, checkpoint, None, host)
    out = os.dup(1)
    os.dup2(2, 1)  # the libraries print
    seen = {"start": anonymous_bytes()}
    from app.engine import environment

    environment.pin(CPU)
    importlib.import_module("unsloth")
    from app.engine import adapter, loader

    seen["imported"] = anonymous_bytes()
    with peak() as most:
        model = loader.load(plan, checkpoint).model
        seen |= {"loaded": anonymous_bytes(), "load_peak": most()}
    weights = counted(model)
    model = adapter.attach(model, plan)
    seen["adapted"] = anonymous_bytes()
    lora = counted(model)["lora"]
    with peak() as most:
        train(model, asked.tokens, asked.steps)
        seen |= {"trained": anonymous_bytes(), "train_peak": most()}
    result = {
        "forecast": expected(facts),
        "low": facts.low("device"),
        "high": facts.high("device"),
        "counted": dict(weights),
        "lora": lora,
        "anonymous": seen,
        "request": asdict(request),
    }
    os.write(out, (json.dumps(result) + "\n").encode())


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the stack's own end takes a second
