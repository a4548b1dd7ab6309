"""Every protocol message as both ends must read and write it: name -> object.

Each has its golden JSON in golden/<name>.json; an end that is not written in Python can be held
against the same files.
"""

from __future__ import annotations

from typing import Any

from ftengine.protocol import (
    EngineInfo,
    ErrorEvent,
    ExpertStats,
    FinishEvent,
    GenerateRequest,
    Health,
    Hello,
    MemoryRequest,
    MemoryState,
    ProgressEvent,
    Sampling,
    TokenEvent,
    TokenLogprob,
)

MESSAGES: dict[str, Any] = {
    "hello_unix": Hello("unix:/run/ft/e-00c0ffee/engine.sock", (1, 0), 4711),
    "hello_tcp": Hello("tcp:127.0.0.1:40123", (1, 0), 4711),
    "generate_least": GenerateRequest("r-1", (1, 2, 3)),
    "generate_all": GenerateRequest(
        request_id="r-2",
        token_ids=(1, 4093, 17),
        sampling=Sampling(
            temperature=0.8,
            top_k=40,
            top_p=0.95,
            min_p=0.05,
            typical_p=0.9,
            repeat_penalty=1.1,
            repeat_last_n=-1,
            presence_penalty=0.5,
            frequency_penalty=-0.25,
            seed=42,
            logit_bias=((5, -100.0), (7, 1.5)),
        ),
        max_tokens=128,
        stop_token_ids=(2, 0),
        anchors=(1, 3),
        logprobs=2,
        prompt_logprobs=True,
        deadline_s=30.5,
    ),
    "event_progress": ProgressEvent(512, 2048),
    "event_token": TokenEvent((42, 43)),
    "event_token_logprobs": TokenEvent((42,), (TokenLogprob(42, -0.25, ((42, -0.25), (7, -2.0))),)),
    "event_finish_stop": FinishEvent("stop", 3, 2, 17, 0.0, 0.5, 1.25, 2),
    "event_finish_length": FinishEvent(
        "length",
        2,
        0,
        128,
        0.125,
        0.5,
        8.0,
        None,
        (None, TokenLogprob(17, -3.5)),
    ),
    "event_error": ErrorEvent("capacity", "needs 12 pages, has 8", True),
    "health_loading": Health("loading", 1_048_576, 4_194_304),
    "health_ready": Health("ready", 4_194_304, 4_194_304, 2, 1, 0.125),
    "health_failed": Health(
        "failed", 0, 4_194_304, error="weights-00000.ftw: shorter than it says"
    ),
    "memory_slots": MemoryRequest(expert_slots=512),
    "memory_kv": MemoryRequest(kv_bytes=268_435_456),
    "memory_state": MemoryState(512, 1_572_864, 268_435_456, 4096, 8_000_000_000, 5_000_000_000, 1),
    "info": EngineInfo(
        protocol=(1, 0),
        version="0.1.0",
        ftw_id="ab" * 32,
        family="qwen3_moe",
        device="cpu",
        compute="bfloat16",
        context_tokens=8192,
        max_sequences=4,
        vocab_size=151_936,
        weights_bytes=17_000_000_000,
        kv_bytes=400_000_000,
        num_experts=128,
        kernels={"expert_ffn": "avx512_bf16", "attention": "avx512"},
        pid=4711,
        started_wall_s=1_700_000_000.5,
        notes=("layers.3: reference path",),
        experts=ExpertStats(
            strategy="split",
            slots=3790,
            resident=3788,
            total=10_240,
            slot_bytes=1_572_864,
            hits=840_000,
            misses=160_000,
            fills=65_600,
            on_cpu=94_400,
            streamed=10_240,
            link_bytes=119_285_022_720,
            passes=3,
            stall_s=1.5,
        ),
    ),
}
