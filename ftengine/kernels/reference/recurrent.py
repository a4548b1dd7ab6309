"""Reference of what recurrent layers do with their state: one sequence, token after token.

A token's result depends on the state before it and on its own inputs, never on how many tokens come
in one call. So chunks of any size give the same bits; a kernel that works on whole chunks must cut
them at absolute multiples of 64 tokens to keep that promise.
"""

from __future__ import annotations

import torch


def causal_conv(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Depthwise convolution over the past; `state` becomes the newest inputs.

    Shape: x [n, channels]; state [taps - 1, channels], the inputs before x; weight [taps,
    channels], its last row for the token itself; bias [channels].
    """
    count = x.shape[0]
    seen = torch.cat([state, x])
    out = seen[:count] * weight[0]
    for tap in range(1, weight.shape[0]):
        out += seen[tap : tap + count] * weight[tap]
    state.copy_(seen[count:])
    return out if bias is None else out.add_(bias)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """S <- decay S; S <- S + k (beta (v - k^T S)); out = S^T q, for each token and value head.

    Shape: q, k [n, key_heads, dk]; v, out [n, heads, dv]; beta [n, heads]; decay the same, or [n,
    heads, dk] where every channel of the keys has its own; state [heads, dk, dv], changed in place.
    Each key head serves heads / key_heads value heads in a row.
    Source: Yang et al., Gated Delta Networks, 2024.
    """
    repeat = v.shape[1] // k.shape[1]
    q = q.repeat_interleave(repeat, dim=1).unsqueeze(-1)
    k = k.repeat_interleave(repeat, dim=1).unsqueeze(-1)
    decay, beta = decay.reshape(*decay.shape[:2], -1, 1), beta[:, :, None]
    scratch = torch.empty_like(state)
    for token in range(v.shape[0]):
        state.mul_(decay[token])
        torch.mul(state, k[token], out=scratch)
        change = (v[token] - scratch.sum(dim=1)) * beta[token]
        state.addcmul_(k[token], change.unsqueeze(1))
        torch.mul(state, q[token], out=scratch)
        torch.sum(scratch, dim=1, out=out[token])


def mamba2_scan(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """S <- decay S + x b^T; out = S c, for each token and head.

    Shape: x (dt included), out [n, heads, p]; b, c [n, groups, states]; decay [n, heads], or [n,
    heads, states] where every state has its own; state [heads, p, states], changed in place. A
    group serves heads / groups heads in a row.
    Source: Dao and Gu, Transformers are SSMs, 2024.
    """
    repeat = x.shape[1] // b.shape[1]
    b = b.repeat_interleave(repeat, dim=1).unsqueeze(2)
    c = c.repeat_interleave(repeat, dim=1).unsqueeze(2)
    decay, wide = decay.reshape(*decay.shape[:2], 1, -1), x.unsqueeze(-1)
    scratch = torch.empty_like(state)
    for token in range(x.shape[0]):
        state.mul_(decay[token]).addcmul_(wide[token], b[token])
        torch.mul(state, c[token], out=scratch)
        torch.sum(scratch, dim=2, out=out[token])
