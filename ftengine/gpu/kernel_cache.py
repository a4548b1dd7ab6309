"""Compiled kernels on disk: what a kernel file holds, its key, the shipped folder and the user's.

A key names everything the machine code depends on: the kernel's source and that of the modules it
imports from its own package, argument types, constants, target, and the Triton that compiled it.
Neither torch nor Triton is needed to read one. Compiling: compile_kernel.py.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import logging
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from ftengine.errors import EngineError
from ftengine.gpu.driver import Target
from ftengine.gpu.kernel_table import Build, Kernel, KernelTable
from ftman import files

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).resolve().parent / "compiled"
"""Where a wheel carries the builds of the table, with the Triton version in VERSION_FILE."""
VERSION_FILE = "TRITON"
_FORMAT = 2
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code and how to launch it. triton: the version that compiled it."""

    image: bytes
    entry: str
    num_warps: int
    warp_size: int
    shared_bytes: int
    triton: str
    format: int = _FORMAT

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.num_warps * self.warp_size


Compiler = Callable[[Kernel, Build, Target], CompiledKernel]


class KernelCache:
    """Finds the compiled form of a build: shipped, compiled here before, or compiled now."""

    def __init__(
        self,
        table: KernelTable,
        folder: Path,
        compiler: Compiler | None,
        shipped: Path | None = SHIPPED,
    ) -> None:
        self._table = table
        self._folder = folder
        self._compiler = compiler
        self._shipped = shipped
        self.num_compiled = 0

    def get(self, build: Build, target: Target) -> CompiledKernel:
        """Raises: EngineError("kernel_missing") when it is not there and cannot be compiled."""
        self._table.check(build)
        kernel = self._table.kernel(build.kernel)
        for folder, triton in self._places():
            found = read_kernel(folder / file_name(kernel, build, target, triton))
            if found is not None:
                return found
        return self._compile(kernel, build, target)

    def _places(self) -> list[tuple[Path, str]]:
        places: list[tuple[Path, str]] = []
        if self._shipped is not None and (self._shipped / VERSION_FILE).is_file():
            version = (self._shipped / VERSION_FILE).read_text("utf-8").strip()
            places.append((self._shipped, version))
        here = installed_triton()
        if here is not None:
            places.append((self._folder, here))
        return places

    def _compile(self, kernel: Kernel, build: Build, target: Target) -> CompiledKernel:
        if self._compiler is None or installed_triton() is None:
            raise EngineError(
                f"the GPU kernel {kernel.name} is not there in compiled form for {target.label}, "
                f"and Triton is not installed to compile it; pip install triton",
                code="kernel_missing",
            )
        compiled = self._compiler(kernel, build, target)
        self.num_compiled += 1
        path = self._folder / file_name(kernel, build, target, compiled.triton)
        try:
            write_kernel(path, compiled)
        except OSError as error:  # it is compiled again next time
            log.warning("the compiled kernel %s cannot be kept: %s", path, error)
        return compiled


def installed_triton() -> str | None:
    """Triton's version, without importing it; None where it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def file_name(kernel: Kernel, build: Build, target: Target, triton: str) -> str:
    """Readable front, exact back: NAME-TARGET-KEY.kernel."""
    arguments = [(item.name, item.type, item.is_aligned) for item in kernel.arguments]
    key = json.dumps(
        [
            _FORMAT,
            source_hash(kernel.module),
            kernel.function,
            arguments,
            sorted(build.values.items()),
            [build.num_warps, build.num_stages],
            [target.backend, target.arch, target.warp_size],
            triton,
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    return f"{kernel.name}-{target.label}-{digest}.kernel"


def source_hash(module: str) -> str:
    """SHA-256 over a module's source and what it imports, directly or not, from its package.

    Raises: EngineError("kernel_missing") when the module has no source file.
    """
    package = module.rpartition(".")[0]
    sources: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        sources[name] = _source(name)
        waiting += _imports(sources[name], package)
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name} {len(sources[name])}\n".encode())
        digest.update(sources[name])
    return digest.hexdigest()


def read_kernel(path: Path) -> CompiledKernel | None:
    """A kernel file; None where there is none, or where it is damaged (then it is made anew)."""
    try:
        data = files.read_bytes(path, limit=_MOST_BYTES)
    except OSError:
        return None
    head, _, rest = data.partition(b"\n")
    digest, packed = rest[:32], rest[32:]
    if hashlib.sha256(head + packed).digest() != digest:
        log.warning("the compiled kernel %s is damaged; it is compiled again", path)
        return None
    return CompiledKernel(image=zlib.decompress(packed), **json.loads(head))


def write_kernel(path: Path, compiled: CompiledKernel) -> None:
    """A line of JSON, 32 bytes of SHA-256 over line and image, the image packed by zlib."""
    fields = {name: value for name, value in asdict(compiled).items() if name != "image"}
    head = json.dumps(fields, sort_keys=True).encode()
    packed = zlib.compress(compiled.image, 9)
    digest = hashlib.sha256(head + packed).digest()
    files.write_atomic(path, head + b"\n" + digest + packed)


def _source(module: str) -> bytes:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise EngineError(
            f"the source of the GPU kernels in {module} is not installed; install ft again",
            code="kernel_missing",
        )
    return Path(spec.origin).read_bytes()


def _imports(source: bytes, package: str) -> list[str]:
    """Modules of the package that this source imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == package:
                found += [f"{package}.{alias.name}" for alias in node.names]
            else:
                found.append(node.module)
    return [name for name in found if name.startswith(f"{package}.")]
