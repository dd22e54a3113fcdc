"""CUDA's error numbers: the half of `app.facts.driver_errors` that is data. Ask there.

Numbers and names are those of cuda.h up to CUDA 13.5 (enum cudaError_enum), and of driver_types.h
for the few that only CUDA's runtime has; the runtime's other numbers are the driver's.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.outcome import Fault

_REQUEST = (
    "start the container with a GPU (docker: --gpus device=0; Kubernetes: nvidia.com/gpu: 1; "
    "Slurm: --gres=gpu:1) on a node that has one"
)
_OTHER = "take another node, and have this one's driver looked at (dmesg shows its Xid messages)"
_DRAIN = "take another node; drain this one and reset or replace the GPU"
_REBOOT = "take another node; reboot or drain this one: its kernel module and libraries differ"
_COMPAT = "take a node with a newer driver, or take the compat folder out of LD_LIBRARY_PATH"
_NEWER = "take a node with a newer driver, or an image built for an older CUDA"
_UVM = "load nvidia-uvm (nvidia-modprobe -u) and pass /dev/nvidia-uvm in, or take another node"
_BUG = "read the traceback in the log; CUDA_LAUNCH_BLOCKING=1 makes it name the call"
_WAIT = "wait for the memory, or take another GPU"
_HELD = "another process holds the GPU exclusively, or its compute mode forbids work: wait, or "
UTILITY = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
RIGHTS = "give this uid (and the container's device list) the right to open /dev/nvidia*"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a number stands for: a kind of fault, and what the person with the job can do."""

    fault: Fault
    step: str


NODE = Meaning(Fault.NODE_UNFIT, _OTHER)
DRAIN = Meaning(Fault.NODE_UNFIT, _DRAIN)
# The call itself was wrong, so that no node would take it.
BUG = Meaning(Fault.INTERNAL, _BUG)
_IMAGE = Meaning(Fault.INTERNAL, "use this profile's image, or rebuild it from its lock")
OLD = Meaning(Fault.NODE_UNFIT, _NEWER)
FULL = Meaning(Fault.TEMPORARY, _WAIT)
_BUSY = Meaning(Fault.TEMPORARY, _HELD + "take another one")
_MPS = Meaning(
    Fault.NODE_UNFIT,
    "take another node, or start its MPS server; else unset CUDA_MPS_PIPE_DIRECTORY",
)
_MPS_LATER = Meaning(Fault.TEMPORARY, "wait for the MPS server of this node, or take another node")
_FABRIC = Meaning(
    Fault.NODE_UNFIT,
    "the fabric manager is not up: take another node, and drain this one if it stays so",
)
MISMATCH = Meaning(Fault.NODE_UNFIT, _REBOOT)
_CLASS = Meaning(
    Fault.HARDWARE_MISMATCH,
    "take a GPU of the class that the image is for, or the image of this GPU",
)

CUDA: dict[int, tuple[str, Meaning]] = {
    1: ("CUDA_ERROR_INVALID_VALUE", BUG),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", FULL),
    3: ("CUDA_ERROR_NOT_INITIALIZED", NODE),
    4: ("CUDA_ERROR_DEINITIALIZED", NODE),
    5: ("CUDA_ERROR_PROFILER_DISABLED", BUG),
    6: ("CUDA_ERROR_PROFILER_NOT_INITIALIZED", BUG),
    7: ("CUDA_ERROR_PROFILER_ALREADY_STARTED", BUG),
    8: ("CUDA_ERROR_PROFILER_ALREADY_STOPPED", BUG),
    9: ("cudaErrorInvalidConfiguration", BUG),
    34: (
        "CUDA_ERROR_STUB_LIBRARY",
        Meaning(
            Fault.INTERNAL,
            "take CUDA's stubs folder out of LD_LIBRARY_PATH: that libcuda is for linking only",
        ),
    ),
    35: ("CUDA_ERROR_INSUFFICIENT_DRIVER", OLD),
    36: ("CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", OLD),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", _BUSY),
    47: ("CUDA_ERROR_MULTICAST_RESOURCE_FULL", _BUSY),
    98: ("cudaErrorInvalidDeviceFunction", _IMAGE),
    100: ("CUDA_ERROR_NO_DEVICE", Meaning(Fault.NODE_UNFIT, _REQUEST)),
    101: ("CUDA_ERROR_INVALID_DEVICE", NODE),
    102: (
        "CUDA_ERROR_DEVICE_NOT_LICENSED",
        Meaning(Fault.NODE_UNFIT, "take another node, or have this one's vGPU licence renewed"),
    ),
    103: ("cudaErrorSoftwareValidityNotEstablished", NODE),
    127: ("cudaErrorStartupFailure", NODE),
    200: ("CUDA_ERROR_INVALID_IMAGE", _IMAGE),
    201: ("CUDA_ERROR_INVALID_CONTEXT", BUG),
    202: ("CUDA_ERROR_CONTEXT_ALREADY_CURRENT", BUG),
    205: ("CUDA_ERROR_MAP_FAILED", NODE),
    206: ("CUDA_ERROR_UNMAP_FAILED", NODE),
    207: ("CUDA_ERROR_ARRAY_IS_MAPPED", BUG),
    208: ("CUDA_ERROR_ALREADY_MAPPED", BUG),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", _CLASS),
    210: ("CUDA_ERROR_ALREADY_ACQUIRED", BUG),
    211: ("CUDA_ERROR_NOT_MAPPED", BUG),
    212: ("CUDA_ERROR_NOT_MAPPED_AS_ARRAY", BUG),
    213: ("CUDA_ERROR_NOT_MAPPED_AS_POINTER", BUG),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", DRAIN),
    215: ("CUDA_ERROR_UNSUPPORTED_LIMIT", BUG),
    216: ("CUDA_ERROR_CONTEXT_ALREADY_IN_USE", _BUSY),
    217: ("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", NODE),
    218: ("CUDA_ERROR_INVALID_PTX", _IMAGE),
    219: ("CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", BUG),
    220: ("CUDA_ERROR_NVLINK_UNCORRECTABLE", DRAIN),
    221: ("CUDA_ERROR_JIT_COMPILER_NOT_FOUND", Meaning(Fault.NODE_UNFIT, UTILITY)),
    222: ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", OLD),
    223: (
        "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        Meaning(Fault.CONFIG, "unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT"),
    ),
    224: ("CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", NODE),
    225: ("CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", _IMAGE),
    226: ("CUDA_ERROR_CONTAINED", DRAIN),
    227: ("CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", OLD),
    300: ("CUDA_ERROR_INVALID_SOURCE", _IMAGE),
    301: ("CUDA_ERROR_FILE_NOT_FOUND", _IMAGE),
    302: ("CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", MISMATCH),
    303: ("CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", MISMATCH),
    304: (
        "CUDA_ERROR_OPERATING_SYSTEM",
        Meaning(
            Fault.NODE_UNFIT,
            "the container may lack /dev/nvidia-uvm or rights on it; else take another node",
        ),
    ),
    400: ("CUDA_ERROR_INVALID_HANDLE", BUG),
    401: ("CUDA_ERROR_ILLEGAL_STATE", NODE),
    402: ("CUDA_ERROR_LOSSY_QUERY", BUG),
    500: ("CUDA_ERROR_NOT_FOUND", _IMAGE),
    600: ("CUDA_ERROR_NOT_READY", NODE),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", NODE),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", BUG),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", NODE),
    703: ("CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", BUG),
    704: ("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", BUG),
    705: ("CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", BUG),
    708: ("CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", BUG),
    709: ("CUDA_ERROR_CONTEXT_IS_DESTROYED", BUG),
    710: ("CUDA_ERROR_ASSERT", BUG),  # an index out of range, nearly always
    711: ("CUDA_ERROR_TOO_MANY_PEERS", NODE),
    712: ("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", BUG),
    713: ("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", BUG),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", NODE),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", NODE),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", NODE),
    717: ("CUDA_ERROR_INVALID_ADDRESS_SPACE", NODE),
    718: ("CUDA_ERROR_INVALID_PC", NODE),
    719: ("CUDA_ERROR_LAUNCH_FAILED", NODE),
    720: ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", BUG),
    721: ("CUDA_ERROR_TENSOR_MEMORY_LEAK", NODE),
    800: ("CUDA_ERROR_NOT_PERMITTED", Meaning(Fault.NODE_UNFIT, RIGHTS)),
    801: ("CUDA_ERROR_NOT_SUPPORTED", NODE),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", _FABRIC),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", MISMATCH),
    804: (
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        Meaning(Fault.NODE_UNFIT, _COMPAT),
    ),
    805: ("CUDA_ERROR_MPS_CONNECTION_FAILED", _MPS),
    806: ("CUDA_ERROR_MPS_RPC_FAILURE", _MPS),
    807: ("CUDA_ERROR_MPS_SERVER_NOT_READY", _MPS_LATER),
    808: ("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", _MPS_LATER),
    809: ("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", _MPS_LATER),
    810: ("CUDA_ERROR_MPS_CLIENT_TERMINATED", _MPS_LATER),
    811: ("CUDA_ERROR_CDP_NOT_SUPPORTED", BUG),
    812: ("CUDA_ERROR_CDP_VERSION_MISMATCH", BUG),
    900: ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", BUG),
    901: ("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", BUG),
    902: ("CUDA_ERROR_STREAM_CAPTURE_MERGE", BUG),
    903: ("CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", BUG),
    904: ("CUDA_ERROR_STREAM_CAPTURE_UNJOINED", BUG),
    905: ("CUDA_ERROR_STREAM_CAPTURE_ISOLATION", BUG),
    906: ("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", BUG),
    907: ("CUDA_ERROR_CAPTURED_EVENT", BUG),
    908: ("CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", BUG),
    909: ("CUDA_ERROR_TIMEOUT", NODE),
    910: ("CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", BUG),
    911: ("CUDA_ERROR_EXTERNAL_DEVICE", NODE),
    912: ("CUDA_ERROR_INVALID_CLUSTER_SIZE", BUG),
    913: ("CUDA_ERROR_FUNCTION_NOT_LOADED", BUG),
    914: ("CUDA_ERROR_INVALID_RESOURCE_TYPE", BUG),
    915: ("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", BUG),
    916: ("CUDA_ERROR_KEY_ROTATION", NODE),
    917: ("CUDA_ERROR_STREAM_DETACHED", BUG),
    918: ("CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", BUG),
    919: ("CUDA_ERROR_FABRIC_NOT_READY", _FABRIC),
    999: ("CUDA_ERROR_UNKNOWN", Meaning(Fault.NODE_UNFIT, _UVM)),
}
