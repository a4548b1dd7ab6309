"""The kernel suite once more, on a library built with AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from pathlib import Path
import pytest
from ftengine.kernels import abi
abi.find_library = lambda given: Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def runtime_of(compiler: str, name: str) -> str:
    """Where the compiler's sanitizer runtime lies, "" without one."""
    done = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
    )
    found = done.stdout.strip()
    return found if Path(found).is_absolute() else ""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_are_clean_under_sanitizers(tmp_path: Path) -> None:
    cmake, compiler = shutil.which("cmake"), shutil.which("g++")
    if cmake is None or compiler is None:
        pytest.skip("cmake and g++ are needed")
    preload = [runtime_of(compiler, name) for name in ("libasan.so", "libubsan.so")]
    if not all(preload):
        pytest.skip("g++ has no sanitizer runtimes here")
    build = tmp_path / "build"
    configure = [cmake, "-S", ROOT / "native", "-B", build, "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run([*configure, "-DFT_SANITIZE=ON"], check=True, capture_output=True)
    subprocess.run([cmake, "--build", build, "-j2"], check=True, capture_output=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",
        "PYTHONPATH": str(ROOT),
    }
    suites = (
        "test_linear",
        "test_expert_ffn",
        "test_attention",
        "test_rounding_target",
        "test_int8_activations",
        "test_state_ops",
        "test_row_copies",
    )
    files = [ROOT / "tests/ftengine/kernels" / f"{name}.py" for name in suites]
    done = subprocess.run(
        [sys.executable, "-c", RUN, build / "libft_native.so", *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "runtime error" not in done.stderr
