"""Layers of different row sizes share one arena; a rebuild keeps what it was told to keep."""

from __future__ import annotations

import numpy as np
import torch

from ftengine.device.emulated import EmulatedDevice, EmulatedSettings
from ftengine.device.torch_device import page_aligned
from ftengine.experts.host import HostBank
from ftengine.experts.slots import Kept, SlotPool
from ftengine.kernels.dispatch import ExpertBank
from ftengine.kernels.native import NativeKernels
from ftengine.quant import format_named, panel32


def bank(fmt: str, inter: int, hidden: int = 64, experts: int = 3) -> HostBank:
    draw = np.random.default_rng(inter)
    layout = panel32.expert_layout(fmt, fmt, hidden, inter)
    data = page_aligned(experts * layout.row_bytes).view(experts, layout.row_bytes)
    quant = format_named(fmt)
    for row in data.numpy():
        gate, up = (quant.quantize(draw.normal(size=(inter, hidden)).astype("f4")) for _ in "gu")
        down = quant.quantize(draw.normal(size=(hidden, inter)).astype("f4"))
        pair, flat = panel32.pack_pair(fmt, gate, up).reshape(-1), panel32.pack(fmt, down)
        row[layout.gate_up_offset :][: pair.size] = pair
        row[layout.down_offset :][: flat.size] = flat.reshape(-1)
    return HostBank(ExpertBank(data, layout, fmt, fmt, hidden, inter))


def test_slot_holds_the_largest_row_and_serves_every_layer_s_layout() -> None:
    hosts = [bank("f32", 96), bank("q8_0", 32), bank("bf16", 64)]
    device = EmulatedDevice(EmulatedSettings(1 << 24))
    pool = SlotPool(device, hosts, 5)
    assert pool.slot_bytes == max(host.bank.row_bytes for host in hosts)
    kernels = NativeKernels.load()
    x = torch.randn(4, 64)
    weights = torch.rand(4, 2)
    ids = torch.tensor([[0, 1], [2, 0], [1, 2], [2, 1]], dtype=torch.int32)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    for layer, host in enumerate(hosts):
        for expert in range(3):
            device.copy(pool.row(int(slots[expert]), host.bank.row_bytes), host.row(expert))
        device.wait(device.record())
        want = kernels.expert_ffn(x, ids, weights, host.bank)
        found = kernels.expert_ffn(x, slots[ids.long()].contiguous(), weights, pool.bank(layer))
        assert torch.equal(found, want)
    device.close()


def test_rebuild_keeps_moved_and_unmoved_slots() -> None:
    device = EmulatedDevice(EmulatedSettings(1 << 24))
    pool = SlotPool(device, [bank("f32", 32)], 6)
    for slot in range(6):
        pool.row(slot, pool.slot_bytes).fill_(slot)
    assert pool.rebuild(3, [Kept(0, 0), Kept(5, 1)])
    assert [int(pool.row(slot, 1)) for slot in range(3)] == [0, 5, 0xFF]
    assert pool.total_bytes == 3 * pool.slot_bytes
    assert device.free_bytes == device.total_bytes - pool.total_bytes
