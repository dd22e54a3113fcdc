"""Stand-ins for what preflight looks at: plans, model folders, a hub over HTTP, a CUDA driver."""

from __future__ import annotations

import json
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from app.checks import Check
from app.checks._quant_state import NF4 as NF4_TABLE
from app.config import ModelRequest
from app.outcome import Finding
from app.plan import DownloadT, Plan
from app.probes.safetensors import BITS
from app.profiles import PROFILES

FactsT = TypeVar("FactsT")
COMMIT = "a" * 40
TOKEN = "hf_" + "SECRETsecretSECRET"


def plan_for(
    hardware: str = "cpu",
    *,
    model: str = "rehearsal:gemma3n",
    report_dir: Path = Path("reports"),
    load_in_4bit: bool = True,
    revision: str | None = None,
    download: DownloadT = "if-missing",
) -> Plan:
    """A plan as settings would make it."""
    request = replace(ModelRequest(), base_model_id=model, load_in_4bit=load_in_4bit)
    return Plan(PROFILES[hardware], request, report_dir, revision, download)


def findings(checks: tuple[Check[FactsT], ...], facts: FactsT, plan: Plan) -> dict[str, Finding]:
    """What every check says, by id; each must name its way out when it blocks."""
    said = {check.id: check.judge(facts, plan) for check in checks}
    for check_id, finding in said.items():
        assert "\n" not in finding.reason, check_id
        if finding.status.blocks:
            assert finding.expected, check_id
            assert finding.actual, check_id
            assert finding.next_step, check_id
    return said


TensorsT = Mapping[str, tuple[str, tuple[int, ...]]]
PACKED: TensorsT = {
    "layer.weight": ("U8", (64, 1)),
    "layer.weight.absmax": ("U8", (2,)),
    "layer.weight.quant_map": ("F32", (16,)),
    "layer.weight.nested_absmax": ("F32", (1,)),
    "layer.weight.nested_quant_map": ("F32", (256,)),
    "layer.weight.quant_state.bitsandbytes__nf4": ("U8", (160,)),
    "norm.weight": ("BF16", (8,)),
}
STATE: Mapping[str, Any] = {
    "quant_type": "nf4",
    "blocksize": 64,
    "dtype": "bfloat16",
    "shape": [8, 16],
    "nested_blocksize": 256,
    "nested_dtype": "float32",
    "nested_offset": 0.05,
}
PLAIN: TensorsT = {"layer.weight": ("BF16", (4, 4)), "norm.weight": ("BF16", (4,))}
NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}


def floats(*numbers: float) -> bytes:
    """Numbers as a file holds them."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def state_bytes(**changes: Any) -> bytes:
    """A quant state of the packed weight, 160 bytes long."""
    return json.dumps({**STATE, **changes}).encode().ljust(160)


# What stands beside the packed weight; everything else is zeros.
CONTENT: Mapping[str, bytes] = {
    "layer.weight.quant_map": floats(*NF4_TABLE),
    "layer.weight.nested_absmax": floats(0.01),
    "layer.weight.nested_quant_map": floats(*(n / 255 for n in range(256))),
    "layer.weight.quant_state.bitsandbytes__nf4": state_bytes(),
}


def safetensors_bytes(tensors: TensorsT, content: Mapping[str, bytes] = CONTENT) -> bytes:
    """A valid file with this content, and zeros in it where there is none of the right size."""
    data = b""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = BITS.get(dtype, 8) // 8
        for side in shape:
            n_bytes *= side
        offsets = [position, position + n_bytes]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        position += n_bytes
        held = content.get(name, b"")
        data += held if len(held) == n_bytes else bytes(n_bytes)
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + data


def model_files(
    tensors: TensorsT = PLAIN,
    *,
    quantization: Mapping[str, Any] | None = None,
    n_shards: int = 1,
    content: Mapping[str, bytes] = CONTENT,
) -> dict[str, bytes]:
    """Names and bytes of a small model folder."""
    config: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    if quantization is not None:
        config["quantization_config"] = dict(quantization)
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}}',
        "tokenizer_config.json": b"{}",
    }
    if n_shards == 1:
        return files | {"model.safetensors": safetensors_bytes(tensors, content)}
    weight_map: dict[str, str] = {}
    for number in range(n_shards):
        name = f"model-{number + 1:05}-of-{n_shards:05}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[number::n_shards]}
        weight_map |= dict.fromkeys(part, name)
        files[name] = safetensors_bytes(part)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}


def write_model(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The files in a folder, made where missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@dataclass
class Hub:
    """A repository behind HTTP.

    `answers`: statuses to give first, in turn; `always`: to give ever after; `page`: their body.
    """

    files: Mapping[str, bytes]
    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    always: tuple[int, dict[str, str]] | None = None
    page: bytes = b'{"error": "no"}'
    requests: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for one request."""
        if self.answers or self.always:
            status, headers = self.answers.pop(0) if self.answers else self.always or (500, {})
            return status, headers, self.page
        head = {"X-Repo-Commit": COMMIT}
        if "/tree/" in path:
            rows = [
                {"type": "file", "path": name, "size": len(body), "oid": f"{len(body):040x}"}
                for name, body in self.files.items()
            ]
            return 200, head, json.dumps(rows).encode()
        if path.startswith("/api/models/"):
            return 200, head, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": []}).encode()
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 200, head | {"ETag": f'"{len(self.files[name]):040x}"'}, self.files[name]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            hub.tokens.add(self.headers.get("Authorization", ""))
            status, headers, body = hub.answer(self.path.partition("?")[0])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# Driven by the environment, which the child that loads it inherits.
LIBCUDA = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>
static long env(const char *name, long other) {
    const char *text = getenv(name);
    return text ? atol(text) : other;
}
int cuDriverGetVersion(int *version) { *version = env("FAKE_CUDA_VERSION", 13000); return 0; }
int cuInit(unsigned flags) {
    if (env("FAKE_HANG", 0)) for (;;) pause();
    if (env("FAKE_CRASH", 0)) raise(env("FAKE_CRASH", 0));
    return env("FAKE_INIT", 0);
}
int cuDeviceGetCount(int *count) { *count = env("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return env("FAKE_GET", 0); }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, getenv("FAKE_NAME") ? getenv("FAKE_NAME") : "NVIDIA H100 80GB HBM3", size);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? env("FAKE_MAJOR", 9) : env("FAKE_MINOR", 0);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = env("FAKE_TOTAL_GIB", 80) << 30;
    return 0;
}
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0xab, 16); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = 0;
    return env("FAKE_CONTEXT", 0);
}
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = env("FAKE_TOTAL_GIB", 80) << 30;
    *free = *total - (env("FAKE_USED_MIB", 500) << 20);
    return 0;
}
"""


def build_libcuda(folder: Path) -> Path:
    """Compile the fake driver; the folder goes on LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "cuda.c"
    source.write_text(LIBCUDA)
    target = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", target, source], check=True)
    return folder
