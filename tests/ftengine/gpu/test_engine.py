"""Whole engines on the stand-in driver: the tokens of the CPU, whatever computes the experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftengine.device.cuda import GpuDevice
from ftengine.errors import CapacityError, EngineError
from ftengine.gpu.decode_steps import DecodeSteps
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.triton.builds import TABLE
from ftengine.protocol import GenerateRequest, MemoryRequest, Sampling
from ftengine.runtime import assemble
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_models import sizes_of
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.host_layers import PlayedEngine
from tests.ftengine.gpu.stepped import SteppedTools, SteppedTorch
from tests.ftengine.parity.tiny_engines import greedy, load_engine, make_tiny, random_ids

PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 40)]
TOKENS = 6
CAPTURED = (
    "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "glm4_moe", "minimax_m2", "ernie4_5_moe", "dots1",
    "hy_v3", "exaone_moe", "solar_open", "qwen3_next", "qwen3_5", "gemma3", "gemma4_dense",
    "gemma4", "lfm2_moe", "granitemoe", "granitemoeshared", "qwen2_moe", "olmoe", "flex_olmo",
    "hunyuan_v1_moe", "afmoe", "bailing_moe_v2", "phimoe", "cohere2_moe", "muse_glimmer",
    "nemotron_h", "nemotron_h_super", "mimo_v2_flash",
    "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "deepseek_v32", "mistral4",
)  # fmt: skip
WITH_STATES = ("qwen3_5_moe", "granitemoehybrid")
WITH_TORCH = ("llama4",)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = sizes_of("mixtral", layers=2, num_experts=16, top_k=2)
    return make_tiny("mixtral", tmp_path_factory.mktemp("mixtral"), sizes=sizes)[1]


@pytest.fixture(scope="module")
def expected(mixtral: Path) -> list[tuple[int, ...]]:
    return on_the_cpu(mixtral)


@pytest.fixture
def on_gpu(
    cuda_is_there: None, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Engine]]:
    """An engine with --device cuda, on the stand-in. stepped: see stepped.py."""
    engines: list[Engine] = []

    def load(folder: Path, stepped: bool = False, **options: Any) -> Engine:
        def tools(config: object, device: GpuDevice, kernels: object) -> GpuTools:
            assert isinstance(kernels, NativeKernels)
            played = PlayedEngine(gpu, NativeKernels.load(num_threads=2))
            cache = KernelCache(TABLE, tmp_path / str(len(engines)), played.compiler, None)
            kind = SteppedTools if stepped else GpuTools
            return kind(device, Launcher(device.driver, TABLE, cache), kernels, "f32")

        monkeypatch.setattr(assemble, "make_tools", tools)
        options = {"parallel": 3, "device": "cuda", **options}
        engines.append(load_engine(folder, **options))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


def tokens_of(engine: Engine) -> list[tuple[int, ...]]:
    return [item.token_ids for item in greedy(engine, PROMPTS, TOKENS)]


def on_the_cpu(folder: Path, **options: Any) -> list[tuple[int, ...]]:
    engine = load_engine(folder, parallel=3, device="cpu", **options)
    found = tokens_of(engine)
    engine.close()
    return found


@pytest.mark.parametrize("strategy", ["fetch", "split", "cpu", "resident", "auto"])
def test_tokens_are_the_cpus(
    gpu: FakeGpu,
    on_gpu: Callable[..., Engine],
    mixtral: Path,
    expected: list[tuple[int, ...]],
    strategy: str,
) -> None:
    """Three prompts, prefilled and decoded together; most steps are launched as one graph."""
    slots = {"resident": 0, "cpu": 0}.get(strategy, 12)
    engine = on_gpu(mixtral, strategy=strategy, expert_slots=slots)
    assert tokens_of(engine) == expected


def test_captured_steps_are_the_eager_ones(
    gpu: FakeGpu,
    on_gpu: Callable[..., Engine],
    mixtral: Path,
    expected: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = on_gpu(mixtral, strategy="split", expert_slots=12)
    assert tokens_of(engine) == expected
    assert engine.info.kernels["step"] == "captured in graphs"
    assert engine.info.kernels["gpu_target"] == "sm_89"
    launched = len(gpu.log("^graph_launch"))
    assert launched >= 2
    monkeypatch.setattr(DecodeSteps, "is_eager", lambda *_: True)
    assert tokens_of(engine) == expected
    assert len(gpu.log("^graph_launch")) == launched


def test_one_sequence_alone_and_indices_in_one_copy(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], mixtral: Path, expected: list[tuple[int, ...]]
) -> None:
    engine = on_gpu(mixtral, strategy="resident", parallel=1)
    assert tokens_of(engine) == expected
    gpu.clear_log()
    engine.generate_sync([GenerateRequest("a", PROMPTS[0], Sampling(temperature=0), max_tokens=6)])
    # the prefix cache leaves one token of the prompt: six steps of one token
    assert len(gpu.log("^graph_launch")) == 6
    # a step's own transfers: indices in and candidates out; experts' totals come beside them
    assert len(gpu.log("^run copy_in")) == 6
    vocab_bytes = 4 * engine.info.vocab_size
    assert all(int(line.split()[2]) < vocab_bytes for line in gpu.log("^run copy_out"))


def test_candidates_choose_what_whole_rows_would(
    on_gpu: Callable[..., Engine], mixtral: Path
) -> None:
    """Greedy, with top_k, with nothing but a temperature, and with log probabilities."""
    ways = [
        Sampling(temperature=0),
        Sampling(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=4),
        Sampling(temperature=0.9, top_p=0.9, seed=5),
        Sampling(temperature=1.1, top_k=40, typical_p=0.8, seed=6),
    ]
    found = []
    for device in ("cpu", "cuda"):
        engine = on_gpu(mixtral, strategy="", device=device)
        requests = [
            GenerateRequest(str(i), PROMPTS[1], way, max_tokens=8, logprobs=3)
            for i, way in enumerate(ways)
        ]
        found.append(engine.generate_sync(requests))
    for mine, theirs in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        for one, other in zip(mine.logprobs, theirs.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [item[0] for item in one.top] == [item[0] for item in other.top]


def test_memory_is_divided_anew_while_requests_run(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], mixtral: Path, expected: list[tuple[int, ...]]
) -> None:
    """Slots up and down, pages up and down, between the steps of requests in flight."""
    engine = on_gpu(mixtral, strategy="fetch", expert_slots=12)
    page_bytes = engine.runner.pool.bytes_per_page
    changes = [
        MemoryRequest(expert_slots=24),
        MemoryRequest(kv_bytes=60 * page_bytes),
        MemoryRequest(expert_slots=8),
        MemoryRequest(kv_bytes=40 * page_bytes),
    ]
    step = engine.step

    def stepping() -> bool:
        if changes:
            engine.resize_sync(changes.pop())
        return step()

    engine.step = stepping  # type: ignore[method-assign]
    assert tokens_of(engine) == expected
    assert not changes
    assert engine.runner.pool.num_pages == 60


def test_kv_pages_in_q8_0(on_gpu: Callable[..., Engine], tmp_path: Path) -> None:
    folder = make_tiny("qwen3", tmp_path)[1]
    engine = on_gpu(folder, kv_format="q8_0")
    assert engine.info.kv_format == "q8_0"
    assert tokens_of(engine) == on_the_cpu(folder, kv_format="q8_0", kernels="reference")


@pytest.mark.parametrize("streamed", [False, True])
def test_dense_models_stay_or_take_turns(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], tmp_path: Path, streamed: bool
) -> None:
    folder = make_tiny("llama", tmp_path, sizes=sizes_of("llama", layers=5))[1]
    engine = on_gpu(folder, step_tokens=64)
    held = gpu.live_bytes
    if streamed:
        weights = engine.info.weights_bytes
        engine = on_gpu(folder, step_tokens=64, device_bytes=held - weights // 4)
        assert any("do not fit on the GPU" in note for note in engine.info.notes)
        assert gpu.live_bytes - held < held
    assert tokens_of(engine) == on_the_cpu(folder)
    assert engine.info.kernels["step"] == "captured in graphs"


@pytest.mark.slow
@pytest.mark.parametrize("family", CAPTURED)
def test_families_whose_steps_are_captured(
    on_gpu: Callable[..., Engine], tmp_path: Path, family: str
) -> None:
    folder = make_tiny(family, tmp_path)[1]
    engine = on_gpu(folder)
    assert tokens_of(engine) == on_the_cpu(folder)
    assert engine.info.kernels["step"] == "captured in graphs"


@pytest.mark.parametrize("family", WITH_STATES)
def test_layers_with_states_are_captured(
    gpu: FakeGpu,
    on_gpu: Callable[..., Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
) -> None:
    """Prompts in chunks beside steps of decoding; once more from checkpoints; and eagerly."""
    folder = make_tiny(family, tmp_path)[1]
    engine, expected = on_gpu(folder, step_tokens=24), on_the_cpu(folder)
    assert tokens_of(engine) == expected
    assert engine.info.kernels["step"] == "captured in graphs"
    launched = len(gpu.log("^graph_launch"))
    assert launched >= 2
    assert tokens_of(engine) == expected
    assert len(gpu.log("^graph_launch")) > launched
    monkeypatch.setattr(DecodeSteps, "is_eager", lambda *_: True)
    assert tokens_of(engine) == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_TORCH)
def test_layers_that_torch_computes_in_part(
    on_gpu: Callable[..., Engine], tmp_path: Path, family: str
) -> None:
    folder = make_tiny(family, tmp_path)[1]
    # the CPU branch copies from the device's own memory, which is not torch's on the stand-in
    strategy = "fetch" if family == "llama4" else ""
    engine = on_gpu(folder, stepped=True, strategy=strategy)
    device = engine.runner._device  # type: ignore[attr-defined]
    with SteppedTorch(device):
        found = tokens_of(engine)
    assert found == on_the_cpu(folder)
    assert engine.info.kernels["step"] == "launch by launch: a part of it is computed by torch"


def test_latents_and_chosen_keys(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], tmp_path: Path
) -> None:
    """An indexer that some layers share; contexts longer and shorter than what it chooses."""
    folder = make_tiny("glm_moe_dsa", tmp_path)[1]
    engine = on_gpu(folder)
    assert tokens_of(engine) == on_the_cpu(folder)
    assert engine.info.kernels["step"] == "captured in graphs"
    assert gpu.log("index_choose")
    assert gpu.log("latent_split")
    assert gpu.log("latent_chunk")


def test_heads_of_any_size(on_gpu: Callable[..., Engine], tmp_path: Path) -> None:
    """20 numbers: neither a power of two nor a multiple of 16."""
    sizes = sizes_of("qwen3", head_dim=20)
    folder = make_tiny("qwen3", tmp_path, sizes=sizes)[1]
    engine = on_gpu(folder)
    assert tokens_of(engine) == on_the_cpu(folder)
    assert engine.info.kernels["step"] == "captured in graphs"


def test_a_block_without_a_kernel_is_refused_by_name(
    on_gpu: Callable[..., Engine], tmp_path: Path
) -> None:
    """Asked for by name it is an error; left to the engine the CPU computes, and says why."""
    folder = make_tiny("jamba", tmp_path)[1]
    with pytest.raises(EngineError, match=r"family jamba needs the block Mamba1.*--device cpu"):
        on_gpu(folder)
    engine = on_gpu(folder, device="auto")
    assert engine.info.device == "cpu"
    assert any("there is a GPU" in note and "Mamba1" in note for note in engine.info.notes)


def test_a_step_that_cannot_be_captured_runs_eagerly(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], mixtral: Path, expected: list[tuple[int, ...]]
) -> None:
    engine = on_gpu(mixtral, strategy="fetch", expert_slots=12)
    gpu.fail("graph_instantiate", 801)
    assert tokens_of(engine) == expected
    assert engine.info.kernels["step"].startswith("launch by launch: cuGraphInstantiate")


def test_a_model_too_large_is_refused_with_both_numbers(
    on_gpu: Callable[..., Engine], mixtral: Path
) -> None:
    with pytest.raises(CapacityError, match=r"needs 0\.\d+ GB on the GPU .* are free"):
        on_gpu(mixtral, strategy="fetch", device_bytes=1 << 16)


def test_no_gpu_is_one_clear_message(mixtral: Path) -> None:
    with pytest.raises(EngineError, match="device cpu"):
        load_engine(mixtral, device="cuda")


def test_auto_is_the_cpu_where_no_driver_is_found(mixtral: Path) -> None:
    engine = load_engine(mixtral, device="auto")
    assert engine.info.device == "cpu"
    engine.close()
