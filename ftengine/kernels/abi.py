"""The C ABI of libft_native as seen from Python: find and load it, struct layouts, status codes.

Layouts mirror native/include/ft/abi.h; the library refuses a struct whose size it does not know, so
a mismatch is an error and never a wrong answer. Tensors are native.py's business.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftengine.errors import EngineError

ABI_VERSION = 5
ACCUMULATE = 1
ADD_ONE = 2
INTERLEAVED = 4
NORMALIZE = 8

# Fields in the order of abi.h; I uint32, q int64, Q pointer, f float32. All naturally aligned.
LINEAR = struct.Struct("=IIQqqQqqQQqII")
EXPERT_FFN = struct.Struct("=IIIIQqqQQqqqqQqQqqQqQqffII")
RMS_NORM = struct.Struct("=IIQqQqQQqqqfI")
ROPE_STORE = struct.Struct("=IIQQQqqqqqqQQQQqQQQQqIfQQ")
ATTENTION = struct.Struct("=IIQqQQqQQQqqqqqqQQqfIQQ")
EMBED_ROWS = struct.Struct("=IIQqqQqQq")
ROUTE = struct.Struct("=IIQqqqqQQQIf")
COPY_ROWS = struct.Struct("=IIQqqqQqqqqqQQq")
GATED_DELTA = struct.Struct("=IIQqqqqqqqQQQQQQQQQqqQQQqff")
SHORT_CONV = struct.Struct("=IIQqqqqQQQQQqqQQq")

OP = struct.Struct("=IIQ")
RUN_OPS = struct.Struct("=IIQqQ")

_LIBRARY_NAMES = ("libft_native.so", "libft_native.dylib", "ft_native.dll")
_PACKAGE = Path(__file__).resolve().parents[1]
_CALLS = (
    "ft_linear",
    "ft_expert_ffn",
    "ft_rms_norm",
    "ft_rope_store",
    "ft_attention",
    "ft_embed_rows",
    "ft_route",
    "ft_gated_delta",
    "ft_short_conv",
)
OP_NAMES = tuple(name.removeprefix("ft_") for name in _CALLS)
"""Calls that a list of operations may hold; their places are their kinds."""


class _Info(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("activations", ctypes.c_uint32),
        ("target", ctypes.c_char * 16),
        ("targets", ctypes.c_char * 64),
        ("features", ctypes.c_char * 160),
    )


ACTIVATIONS = ("auto", "int8")
"""How products with weights of integer codes take activations; places are the library's numbers."""


@dataclass(frozen=True)
class NativeInfo:
    """What the library uses: target is the chosen instruction set, targets the usable ones.

    activations: one of ACTIVATIONS.
    """

    target: str
    activations: str
    targets: tuple[str, ...]
    threads: int
    features: tuple[str, ...]


def find_library(given: Path | None) -> Path:
    """The library to load: the given one, else the installed one, else the one in build/native.

    Raises: EngineError("native_missing") naming how to build it.
    """
    if given is not None:
        if given.is_file():
            return given
        raise _missing(f"the native library {given} does not exist")
    folders = (_PACKAGE / "_native", _PACKAGE.parent / "build" / "native")
    for folder in folders:
        for name in _LIBRARY_NAMES:
            if (folder / name).is_file():
                return folder / name
    raise _missing("the native library is not built")


def load_library(path: Path) -> ctypes.CDLL:
    """Load and type the functions. Raises: EngineError("native_missing")."""
    try:
        library = ctypes.CDLL(str(path))
        version = int(library.ft_abi_version())
    except (OSError, AttributeError) as error:
        raise _missing(f"the native library {path} does not load: {error}") from None
    if version != ABI_VERSION:
        raise _missing(f"{path} has ABI version {version}, this package needs {ABI_VERSION}")
    for name in (*_CALLS, "ft_run_ops", "ft_copy_rows"):
        call = getattr(library, name)
        call.argtypes = (ctypes.c_char_p,)
        call.restype = ctypes.c_int32
    library.ft_expert_ffn_scratch.argtypes = (ctypes.c_char_p,)
    library.ft_expert_ffn_scratch.restype = ctypes.c_int64
    library.ft_set_target.argtypes = (ctypes.c_char_p,)
    library.ft_set_activations.argtypes = (ctypes.c_uint32,)
    library.ft_activation_bits.argtypes = (ctypes.c_uint32,)
    library.ft_status_text.restype = ctypes.c_char_p
    library.ft_products.argtypes = (ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p)
    library.ft_hand_over.argtypes = (ctypes.c_int32, ctypes.c_void_p)
    library.ft_stream_read.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    return library


def read_info(library: ctypes.CDLL) -> NativeInfo:
    """Ask the library what it uses."""
    info = _Info(size=ctypes.sizeof(_Info))
    check(library, int(library.ft_info(ctypes.byref(info))), "ft_info")
    return NativeInfo(
        target=info.target.decode(),
        activations=ACTIVATIONS[info.activations],
        targets=tuple(info.targets.decode().split(",")),
        threads=int(info.threads),
        features=tuple(filter(None, info.features.decode().split(","))),
    )


def check(library: Any, status: int, call: str) -> None:
    """Turn a status into an error. Raises: EngineError("native_call")."""
    if status != 0:
        text = library.ft_status_text(status).decode()
        raise EngineError(f"{call}: {text}", code="native_call")


def _missing(what: str) -> EngineError:
    return EngineError(
        f"{what}; build it with: cmake -S native -B build/native -DCMAKE_BUILD_TYPE=Release && "
        "cmake --build build/native (or choose the reference kernels, which are slower)",
        code="native_missing",
    )
