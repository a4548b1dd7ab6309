"""Is what we compute what the model says? Dense = upcycled MoE = transformers, on real weights.

`python -m benchmarks.real_model SmolLM2-135M-Instruct.Q4_1.gguf`. The reference dequantises the
same GGUF and runs in float32. Nothing is timed. A token that differs where the two best logits lie
closer than 1e-4 of their spread is a tie and is counted apart.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from benchmarks.common import ROOT, report
from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.protocol import GenerateRequest
from ftengine.runtime.engine import Engine

TOKENS = 64
TIE = 1e-4
QUESTIONS = (
    "Why is the sky blue?",
    "Name three fruits that grow in winter.",
    "Write one sentence about the sea.",
    "What is seven times eight?",
    "Explain what a compiler does.",
    "How do bees find their way home?",
    "Translate 'good morning' into French.",
    "What should I cook with rice and eggs?",
    "Who wrote the play Hamlet?",
    "Give me a short tip for learning to swim.",
)
TEXT = (
    "The river rises in the hills above the town and runs for eighty miles before it reaches "
    "the coast. In spring, when the snow melts, it floods the low meadows, and the farmers "
    "move their cattle to higher ground. A stone bridge of three arches was built across it "
    "in the seventeenth century, and the road over the bridge is still the shortest way to "
    "the market. Boats used to carry wool and timber down to the harbour, but the railway "
    "took most of that trade away. Today people come to walk along the banks, to fish for "
    "trout, and to watch the herons that nest in the old willows. On summer evenings the "
    "water is so still that the church tower can be seen twice, once against the sky and once"
    " among the reeds."
)


@dataclass(frozen=True)
class Answers:
    """What one engine said. Shape: logits [tokens of TEXT, vocabulary]."""

    logits: torch.Tensor
    perplexity: float
    greedy: list[list[int]]


def chat(question: str) -> str:
    """The prompt that SmolLM2 was trained on."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    """exp of the mean negative log likelihood of each token after the first."""
    chances = torch.log_softmax(logits[:-1].double(), -1)
    return float(torch.exp(-chances.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).mean()))


def ask_ours(
    ftw: Path,
    compute: str,
    text: list[int],
    prompts: list[list[int]],
    kv_format: str = "auto",
    activations: str = "auto",
    kernels: str = "native",
) -> Answers:
    """Logits, perplexity and greedy answers of our engine."""
    engine = Engine(
        EngineConfig(
            ftw,
            2048,
            num_parallel=4,
            compute=ComputeConfig(compute=compute, activations=activations, kernels=kernels),
            memory=MemoryConfig(kv_format=kv_format),
        )
    )
    engine.load()
    logits = engine.runner.logits(text)
    requests = [
        GenerateRequest(f"q{n}", tuple(ids), max_tokens=TOKENS) for n, ids in enumerate(prompts)
    ]
    greedy = [list(result.token_ids) for result in engine.generate_sync(requests)]
    return Answers(logits, perplexity(logits, text), greedy)


def ask_reference(gguf: Path, text: list[int], prompts: list[list[int]]) -> Answers:
    """The same from transformers in float32 on the dequantised weights."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        logits = model(torch.tensor([text])).logits[0]
        greedy = []
        for ids in prompts:
            made = model.generate(
                torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False, pad_token_id=2
            )
            greedy.append([int(token) for token in made[0, len(ids) :] if int(token) != 2])
    return Answers(logits, perplexity(logits, text), greedy)


def compare(ours: Answers, reference: Answers, prompts: list[list[int]], judge: Engine) -> dict:  # type: ignore[type-arg]
    """Largest logit difference, differing tokens, and how many of those start at a tie."""
    different, ties = 0, 0
    for prompt, left, right in zip(prompts, ours.greedy, reference.greedy, strict=True):
        first = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
        if first is None:
            different += abs(len(left) - len(right))
            continue
        different += len(left) - first
        row = judge.runner.logits([*prompt, *left[:first]])[-1].double()
        best = torch.topk(row, 2).values
        ties += int(float(best[0] - best[1]) < TIE * float(row.std()))
    return {
        "max_logit_difference": float((ours.logits - reference.logits).abs().max()),
        "tokens": sum(map(len, ours.greedy)),
        "different_tokens": different,
        "prompts_split_at_a_tie": ties,
        "perplexity": [round(ours.perplexity, 4), round(reference.perplexity, 4)],
    }


def measure(gguf: Path) -> dict[str, dict]:  # type: ignore[type-arg]
    """Every comparison of one GGUF, by name."""
    with tempfile.TemporaryDirectory() as folder:
        dense, moe = Path(folder) / "dense", Path(folder) / "moe"
        convert = [sys.executable, "-m", "ftengine.convert", "local", str(gguf)]
        for command in ([str(dense)], [str(moe), "--derive", "upcycle:8:2"]):
            subprocess.run([*convert, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        tokenizer = Tokenizer.from_file(str(dense / "tokenizer.json"))
        text = tokenizer.encode(TEXT).ids
        prompts = [tokenizer.encode(chat(question)).ids for question in QUESTIONS]
        reference = ask_reference(gguf, text, prompts)
        exact = ask_ours(dense, "float32", text, prompts)
        judge = Engine(EngineConfig(dense, 2048, compute=ComputeConfig(compute="float32")))
        judge.load()
        default = ask_ours(dense, "bfloat16", text, prompts)
        return {
            "float32 dense / transformers": compare(exact, reference, prompts, judge),
            "float32 moe / transformers": compare(
                ask_ours(moe, "float32", text, prompts), reference, prompts, judge
            ),
            "float32 moe / float32 dense": compare(
                ask_ours(moe, "float32", text, prompts), exact, prompts, judge
            ),
            "default dense / float32 dense": compare(default, exact, prompts, judge),
            "default dense / default dense of the reference kernels": compare(
                default,
                ask_ours(dense, "bfloat16", text, prompts, kernels="reference"),
                prompts,
                judge,
            ),
            "default moe / float32 dense": compare(
                ask_ours(moe, "bfloat16", text, prompts), exact, prompts, judge
            ),
            "int8 activations dense / default dense": compare(
                ask_ours(dense, "bfloat16", text, prompts, activations="int8"),
                default,
                prompts,
                judge,
            ),
            "q8_0 KV, else float32 dense / float32 dense": compare(
                ask_ours(dense, "float32", text, prompts, "q8_0"), exact, prompts, judge
            ),
            "q8_0 KV dense / default dense": compare(
                ask_ours(dense, "bfloat16", text, prompts, "q8_0"), default, prompts, judge
            ),
        }


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    report("real_model", {}, measure(parser.parse_args().gguf))


if __name__ == "__main__":
    main()
