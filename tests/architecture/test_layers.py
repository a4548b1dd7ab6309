"""Imports point down: the layer table of ARCHITECTURE.md, as a test."""

from __future__ import annotations

import pytest

from tests.architecture.source import Module, imports, modules

# The longest matching prefix decides. A module may import lower layers, and its own package.
FTMAN = {
    "ftman": 0,
    "ftman.errors": 0,
    "ftman.config": 0,
    "ftman.log": 0,
    "ftman.names": 0,
    "ftman.files": 0,
    "ftman.clock": 0,
    "ftman.last_read": 0,
    "ftman.waits": 0,
    "ftman.faults": 0,
    "ftman.memory": 0,
    "ftman.caller": 0,
    "ftman.keys": 1,
    "ftman.child_answer": 1,
    "ftman.chat": 1,
    "ftman.supervisor.policy": 1,
    "ftman.supervisor.policy_breaker": 1,
    "ftman.supervisor.policy_events": 1,
    "ftman.supervisor.fit": 1,
    "ftman.catalog": 2,
    "ftman.supervisor": 2,
    "ftman.autostart": 2,
    "ftman.convert": 3,
    "ftman.calibration": 3,
    "ftman.bench": 3,
    "ftman.forecast": 3,
    "ftman.pull": 4,
    "ftman.doctor": 4,
    "ftman.service": 5,
    "ftman.gateway": 6,
    "ftman.cli": 7,
    "ftman.__main__": 8,
}
FTENGINE = {
    "ftengine": 0,
    "ftengine.protocol": 0,
    "ftengine.errors": 0,
    "ftengine.config": 0,
    "ftengine.log": 0,
    "ftengine.gpu": 1,
    "ftengine.gpu.cpu_pairs": 3,
    "ftengine.gpu.moe_layer": 3,
    "ftengine.gpu.pair_callback": 3,
    "ftengine.gpu.dense_stream": 3,
    "ftengine.gpu.ship": 3,
    "ftengine.gpu.arena": 3,
    "ftengine.gpu.best": 3,
    "ftengine.gpu.decode_steps": 3,
    "ftengine.gpu.indices": 3,
    "ftengine.gpu.kernels": 3,
    "ftengine.gpu.latent": 3,
    "ftengine.gpu.placer": 3,
    "ftengine.gpu.rows": 3,
    "ftengine.gpu.states": 3,
    "ftengine.gpu.tools": 3,
    "ftengine.quant": 1,
    "ftengine.kernels": 2,
    "ftengine.device": 2,
    "ftengine.device.torch_device": 1,
    "ftengine.cache": 3,
    "ftengine.experts": 3,
    "ftengine.experts.gpu_store": 4,
    "ftengine.experts.on_gpu": 4,
    "ftengine.layers": 4,
    "ftengine.models.spec": 1,
    "ftengine.models.scan_specs": 1,
    "ftengine.models.attention_specs": 1,
    "ftengine.models.weight_names": 1,
    "ftengine.models.widths": 1,
    "ftengine.models.families": 1,
    "ftengine.models": 5,
    "ftengine.plan": 6,
    "ftengine.loader": 5,
    "ftengine.loader.safetensors_header": 1,
    "ftengine.loader.gguf": 1,
    "ftengine.loader.ftw": 1,
    "ftengine.loader.ftw_index": 1,
    "ftengine.loader.stored": 1,
    "ftengine.loader.block_check": 1,
    "ftengine.loader.cached_file": 1,
    "ftengine.convert": 6,
    "ftengine.calibrate": 6,
    "ftengine.forecast": 6,
    "ftengine.scheduler": 6,
    "ftengine.sampling": 6,
    "ftengine.constraints": 6,
    "ftengine.runtime": 7,
    "ftengine.server": 8,
    "ftengine.profile": 8,
    "ftengine.__main__": 9,
}
# The converter writes through the manager's file layer: one file layer, not two.
SHARED_BASE = {"ftman.files", "ftman.clock", "ftman.faults"}


def layer_of(name: str, table: dict[str, int]) -> int | None:
    """Layer of the longest prefix of `name` in the table."""
    while name:
        if name in table:
            return table[name]
        name = name.rpartition(".")[0]
    return None


def wrong_imports(module: Module, table: dict[str, int]) -> list[str]:
    """Imports of `module` that point up or sideways into another package."""
    own_layer = layer_of(module.name, table)
    assert own_layer is not None, f"{module.where} has no layer; add it to the table"
    package = ".".join(module.name.split(".")[:2])
    wrong = []
    for target, line in imports(module):
        layer = layer_of(target, table)
        if layer is None or target.split(".")[0] not in ("ftman", "ftengine"):
            continue
        same_package = target == package or target.startswith(package + ".")
        if layer > own_layer or (layer == own_layer and layer > 0 and not same_package):
            wrong.append(f"{module.where}:{line} imports {target} (layer {layer} >= {own_layer})")
    return wrong


@pytest.mark.parametrize(("package", "table"), [("ftman", FTMAN), ("ftengine", FTENGINE)])
def test_imports_point_down(package: str, table: dict[str, int]) -> None:
    wrong = [line for module in modules(package) for line in wrong_imports(module, table)]
    assert not wrong, "\n".join(wrong)


def test_manager_knows_only_the_engine_protocol() -> None:
    wrong = [
        f"{module.where}:{line} imports {target}"
        for module in modules("ftman")
        for target, line in imports(module)
        if target.split(".")[0] == "ftengine"
        and not (target.startswith("ftengine.protocol") or target == "ftengine.protocol")
    ]
    assert not wrong, "\n".join(wrong)


def test_engine_uses_only_the_file_layer_of_the_manager() -> None:
    wrong = [
        f"{module.where}:{line} imports {target}"
        for module in modules("ftengine")
        for target, line in imports(module)
        if target.split(".")[0] == "ftman"
        and not any(target == base or target.startswith(base + ".") for base in SHARED_BASE)
        and target != "ftman.__version__"
    ]
    assert not wrong, "\n".join(wrong)


def test_package_inits_compute_nothing() -> None:
    wrong = []
    for module in (*modules("ftman"), *modules("ftengine")):
        if module.path.name != "__init__.py":
            continue
        for node in module.tree.body:
            kind = type(node).__name__
            if kind not in ("Expr", "Import", "ImportFrom", "Assign", "AnnAssign", "FunctionDef"):
                wrong.append(f"{module.where}:{node.lineno} {kind}")
    assert not wrong, "\n".join(wrong)
