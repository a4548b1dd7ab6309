"""The sections of gpu_check: what runs on the GPU, at the shapes of Qwen3.6-35B's routed experts.

"decode" here is a step's routed experts, all layers, with a random model and a sticky random
router: attention and the rest are not in it, and the results say so; whole engines are in
gpu_engine.py. Not yet run on a GPU.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT
from benchmarks.gpu_engine import EngineSections
from benchmarks.gpu_latents import LatentShape, latents
from benchmarks.gpu_prefill import prefill
from benchmarks.gpu_rig import RATES, Rig, Shape, Tools
from ftengine.device.cuda import open_gpu
from ftengine.errors import EngineError
from ftengine.gpu.tools import GpuTools

REAL = Shape(layers=40, experts=256, places=8, hidden=2048, inter=512)
FORMATS = ("bf16", "mxfp4", "nvfp4", "fp8_block", "q8_0")
_STEPS = 24
_TOLERANCE = 2e-2
"""Of the largest number of a result: the GPU's sums are in another order, some formats in bf16."""
_HELD_BYTES = 2 << 30
_VICTIM = """
import sys
from ftengine.gpu.driver import Driver
driver = Driver.open()
driver.allocate(int(sys.argv[1]))
print("holding", flush=True)
sys.stdin.read()
"""


@dataclass
class Check:
    """Everything a section needs. shape and budgets are smaller in the tests."""

    tools: Tools
    shape: Shape = REAL
    formats: tuple[str, ...] = FORMATS
    decode_format: str = "mxfp4"
    budgets_bytes: tuple[int, ...] = (8 * 10**9, 24 * 10**9, 32 * 10**9)
    steps: int = _STEPS
    dot: str = "bf16"
    latent_shape: LatentShape = field(default_factory=LatentShape)
    rates: dict[str, float] = field(default_factory=lambda: dict(RATES))
    engine: EngineSections = field(default_factory=lambda: EngineSections(Path("gpu_model")))

    @classmethod
    def open(cls) -> Check:
        """On this machine's GPU. Raises: EngineError naming the next step."""
        device = open_gpu()
        stream = torch.cuda.ExternalStream(device.compute.handle)
        torch.cuda.set_stream(stream)
        return cls(Tools.open(device, Path("gpu_kernels")))

    @property
    def described(self) -> dict[str, Any]:
        """The machine, for the report."""
        info = self.tools.device.driver.info
        return {
            "gpu": info.name,
            "target": info.target.label,
            "gpu_bytes": info.total_bytes,
            "driver": info.driver_version,
            "memory_ops": info.memory_ops,
            "torch": torch.__version__,
            "cpu_kernels": self.tools.kernels.info().target,
            "threads": self.tools.kernels.info().threads,
        }

    @property
    def sections(self) -> dict[str, Callable[[], Mapping[str, Any]]]:
        """By name, in order of value."""
        first, *larger = self.budgets_bytes
        return {
            "kernels": self.kernels,
            "eager_is_graph": self.eager_is_graph,
            "strategies_equal": self.strategies_equal,
            "rates": self.measure_rates,
            **self.engine.sections,
            _budget_name(first): lambda: self.decode(first),
            **{_budget_name(size): self._decode_at(size) for size in larger},
            "prefill_overlap": self.prefill_overlap,
            "latents": self.latents,
            "resizes": self.resizes,
            "kills": self.kills,
        }

    def close(self) -> None:
        """Give the GPU back."""
        self.engine.close()
        self.tools.close()

    def kernels(self) -> Mapping[str, Any]:
        """Routed experts of one layer, all in slots, against the CPU's kernels; and their time."""
        found: dict[str, Any] = {}
        for fmt in self.formats:
            with Rig(self.tools, self.shape.only(1), fmt, self.shape.experts, "fetch") as rig:
                got, wanted = rig.step_once(), rig.on_cpu()
                error = _relative(got, wanted)
                seconds = rig.seconds(self.steps)
                found[fmt] = {"error": error, "layer_us": seconds * 1e6}
                _check(error < _TOLERANCE, f"{fmt}: {error} of the largest number")
        return found

    def eager_is_graph(self) -> Mapping[str, Any]:
        """The same bits from launches one by one and from the captured step."""
        found: dict[str, Any] = {}
        for mode in ("fetch", "split", "cpu"):
            slots = 2 * self.shape.places
            with Rig(self.tools, self.shape.only(2), self.decode_format, slots, mode) as rig:
                rig.reset()
                eager = rig.step_once(captured=False)
                rig.reset()
                captured = rig.step_once()
                _check(torch.equal(eager, captured), f"{mode}: eager and captured differ")
                found[mode] = "equal"
        return found

    def strategies_equal(self) -> Mapping[str, Any]:
        """Who computes an expert changes a result by rounding only."""
        results: dict[str, torch.Tensor] = {}
        for mode in ("cpu", "fetch", "split"):
            slots = 2 * self.shape.places
            with Rig(self.tools, self.shape.only(2), self.decode_format, slots, mode) as rig:
                results[mode] = torch.stack([rig.step_once() for _ in range(4)])
        errors = {mode: _relative(results[mode], results["cpu"]) for mode in ("fetch", "split")}
        _check(max(errors.values()) < _TOLERANCE, f"strategies differ: {errors}")
        return errors

    def measure_rates(self) -> Mapping[str, Any]:
        """B_P by copy engine and by kernel, B_H, and B_R: the CPU while the link is busy."""
        with Rig(self.tools, self.shape.only(4), self.decode_format, 64, "split") as rig:
            found = {
                "link_bytes_per_s": rig.link_rate(),
                "host_bytes_per_s": rig.host_rate(),
                "host_left_bytes_per_s": rig.host_rate(link_busy=True),
            }
        self.rates.update(found)
        return {**found, "row_bytes": rig.row_bytes}

    def decode(self, budget_bytes: int) -> Mapping[str, Any]:
        """Steps per second of all layers' routed experts, one sequence, per strategy."""
        found: dict[str, Any] = {"scope": "routed experts only, random model, sticky router"}
        for mode in ("split", "fetch", "cpu"):
            rig = Rig(self.tools, self.shape, self.decode_format, 0, mode, self.rates, budget_bytes)
            with rig:
                rig.seconds(self.steps)  # the cache fills
                rig.totals()
                found[mode] = {"steps_per_s": 1 / rig.seconds(self.steps), **rig.totals()}
                found["slots"] = rig.num_slots
        pure = max(found["fetch"]["steps_per_s"], found["cpu"]["steps_per_s"])
        return {**found, "split_over_better_pure": found["split"]["steps_per_s"] / pure}

    def prefill_overlap(self) -> Mapping[str, Any]:
        """Chunks of a prompt, whole layers through two buffers, against link and compute alone."""
        shape, tokens = self.shape.only(4), 64 * self.shape.places
        return prefill(self.tools, shape, self.decode_format, tokens, self.dot)

    def latents(self) -> Mapping[str, Any]:
        """Latent attention of all keys and of chosen ones, against the reference."""
        tools = GpuTools(self.tools.device, self.tools.launcher, self.tools.kernels, self.dot)
        return latents(tools, self.latent_shape, self.steps)

    def resizes(self) -> Mapping[str, Any]:
        """The pool made anew three times between steps; memory and results as before."""
        shape, found = self.shape.only(2), []
        for slots in (2 * shape.places, 8 * shape.places, 4 * shape.places):
            before = self.tools.device.free_bytes
            with Rig(self.tools, shape, self.decode_format, slots, "fetch") as rig:
                error = _relative(rig.step_once(), rig.on_cpu())
                _check(error < _TOLERANCE, f"{slots} slots: {error}")
                found.append({"slots": slots, "taken_bytes": before - self.tools.device.free_bytes})
            _check(self.tools.device.free_bytes == before, "memory of the old pool did not return")
        return {"pools": found}

    def kills(self) -> Mapping[str, Any]:
        """A process that holds memory is killed three times; the driver gives it back."""
        device, found = self.tools.device, []
        for _ in range(3):
            before = device.free_bytes
            child = subprocess.Popen(
                [sys.executable, "-c", _VICTIM, str(_HELD_BYTES)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert child.stdout is not None
            child.stdout.readline()
            held = before - device.free_bytes
            child.send_signal(signal.SIGKILL)
            child.wait()
            killed = time.monotonic()
            while before - device.free_bytes > held // 2 and time.monotonic() - killed < 10:
                time.sleep(0.01)
            seconds = time.monotonic() - killed
            _check(before - device.free_bytes <= held // 2, "a killed process's memory stays taken")
            found.append({"held_bytes": held, "back_after_s": round(seconds, 3)})
        return {"kills": found}

    def _decode_at(self, budget_bytes: int) -> Callable[[], Mapping[str, Any]]:
        return lambda: self.decode(budget_bytes)


def _budget_name(budget_bytes: int) -> str:
    return f"decode_{budget_bytes / 1e9:g}_gb"


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise EngineError(message)
