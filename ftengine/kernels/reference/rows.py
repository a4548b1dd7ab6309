"""Reference of what layers do to rows between the large kernels: sums, gates, bounds."""

from __future__ import annotations

import torch

from ftengine.kernels.reference.norm import rms_norm


class TorchRows:
    """Row operations in torch, for kernel sets on the CPU. Meanings: dispatch.Kernels."""

    def add_rows(
        self,
        source: torch.Tensor,
        out: torch.Tensor,
        factor: float = 1.0,
        accumulate: bool = True,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out (+)= factor * source + bias. Shape: source, out [n, width]; bias [width]."""
        if accumulate:
            out.add_(source, alpha=factor)
        elif factor != 1.0:
            torch.mul(source, factor, out=out)
        elif out is not source:
            out.copy_(source)
        return out if bias is None else out.add_(bias)

    def fill_rows(self, out: torch.Tensor, value: float) -> None:
        """out = value."""
        out.fill_(value)

    def gate_rows(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        out: torch.Tensor,
        kind: str = "plain",
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out = x * kind(gate). kind: "plain", "sigmoid" or "silu"; x may be out.

        Shape: x, out [n, width]; gate [n, part] or [1, part], once for each `part` of a row; with
        an index, int32 [n], row index[i] of gate [any, part] is for row i.
        """
        if index is not None:
            gate = gate[index.long()]
        if kind == "sigmoid":
            gate = gate.sigmoid()
        elif kind == "silu":
            gate = torch.nn.functional.silu(gate)
        if gate.shape[1] == x.shape[1]:
            return torch.mul(x, gate, out=out)
        # as_strided: the rows of x may lie apart
        shape = (x.shape[0], x.shape[1] // gate.shape[1], gate.shape[1])
        parts = x.as_strided(shape, (x.stride(0), gate.shape[1], 1))
        return out.copy_((parts * gate[:, None]).flatten(1))

    def move_heads(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        heads: int,
        from_dim: int,
        to_dim: int,
        turns: int = 1,
    ) -> torch.Tensor:
        """Heads of from_dim numbers become heads of to_dim: zeros are added, or the last are cut.

        With turns, heads of `turns` groups that stand one after the other come in turns. x may be
        out. Shape: x [n, heads * from_dim]; out [n, heads * to_dim].
        """
        count, kept = x.shape[0], min(from_dim, to_dim)
        groups = x.view(count, turns, heads // turns, from_dim)[..., :kept].transpose(1, 2)
        found = groups.reshape(count, heads, kept).clone()
        target = out.view(count, heads, to_dim)
        target[..., :kept] = found
        target[..., kept:] = 0.0
        return out

    def squash_rows(
        self, x: torch.Tensor, out: torch.Tensor, kind: str, limit: float = 1.0
    ) -> torch.Tensor:
        """out = kind(x): "sigmoid"; "tanh", limit * tanh(x / limit); "clamp", to -limit .. limit.

        Shape: x, out [n, width]; may be the same.
        """
        if kind == "sigmoid":
            # few numbers: in float64, so that vector and scalar code of torch round alike
            return out.copy_(x.double().sigmoid_())
        if kind == "tanh":
            return torch.div(x, limit, out=out).tanh_().mul_(limit)
        return torch.clamp(x, -limit, limit, out=out)

    def centre_rows(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """out = x less the mean of its row. Shape: x, out [n, width]; may be the same."""
        # sums of a row in float64, so that they are the same whatever the number of rows
        return torch.sub(x, x.double().mean(dim=-1, keepdim=True).float(), out=out)

    def group_norm(
        self, x: torch.Tensor, weight: torch.Tensor, groups: int, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """An RMS norm over each of `groups` equal parts of a row.

        Shape: x, out [n, width], may be the same; weight [width].
        """
        parts = x.view(x.shape[0], groups, -1)
        return out.copy_(rms_norm(parts, weight.view(groups, -1), eps).flatten(1))
