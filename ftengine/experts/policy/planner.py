"""How the misses of one MoE layer are divided: copied into slots, or computed by the CPU.

Integer arithmetic over at most `max_fills + 1` candidates and one counter per layer, so that a
device kernel can do the same (README.md). Which misses are filled and who leaves: residency.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftengine.experts.policy.rates import Corrected, Rates
from ftengine.experts.policy.residency import COLD_PART, Signs

STRATEGIES = ("resident", "fetch", "cpu", "split", "auto")
_TIE = 1e-9
_WINDOW = 128
"""Observed splits that are judged together before a strategy is left or taken up again."""
_LOSING = 1.05
_PAUSE = 8
"""Windows for which a losing split stays away."""


@dataclass(frozen=True)
class Split:
    """fills: misses copied into slots and run on the device. on_cpu: the others."""

    fills: int
    on_cpu: int


@dataclass(frozen=True)
class Estimate:
    """Seconds of the two branches of one layer, and of the layer."""

    fill_s: float
    cpu_s: float
    layer_s: float


@dataclass
class Counters:
    """What the planner decided so far."""

    splits: int = 0
    fills: int = 0
    on_cpu: int = 0
    owed_fills: int = 0
    fallbacks: int = 0


def estimate(rates: Rates, row_bytes: int, fills: int, on_cpu: int, num_hits: int = 0) -> Estimate:
    """Predicted seconds of one layer: device branch and CPU branch side by side.

    While the link copies, the CPU branch has host_left_bytes_per_s; afterwards it has the host
    memory alone.
    """
    fill_s = 0.0
    if fills:
        each = rates.copy_latency_s + row_bytes / rates.link_bytes_per_s
        fill_s = rates.link_latency_s + fills * each
    cpu_s = 0.0
    if on_cpu:
        beside = max(fill_s - rates.cpu_latency_s, 0.0)
        done = min(beside * rates.host_left_bytes_per_s, float(on_cpu * row_bytes))
        rest = on_cpu * row_bytes - done
        busy = beside if rest > 0 else done / max(rates.host_left_bytes_per_s, 1.0)
        cpu_s = rates.cpu_latency_s + busy + rest / rates.host_bytes_per_s
    device_s = (num_hits + fills) * row_bytes / rates.device_bytes_per_s
    return Estimate(fill_s, cpu_s, max(fill_s + device_s, cpu_s))


class Planner:
    """Divides misses for one engine; one instance sees every layer of every step.

    Raises: ValueError for an unknown strategy.
    """

    def __init__(
        self, rates: Rates, row_bytes: Sequence[int], strategy: str = "auto", min_fill: int = 0
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy {strategy!r} is unknown; one of {', '.join(STRATEGIES)}")
        self.strategy = strategy
        self.counters = Counters()
        self._row_bytes = tuple(row_bytes)
        self._min_fill = min_fill
        self._corrected = Corrected(rates)
        self._rates = rates
        self._since_fill = [0] * len(self._row_bytes)
        self._owed = [False] * len(self._row_bytes)
        self._judge = _Judge()
        self._reuse = _Reuse()

    @property
    def rates(self) -> Rates:
        """The rates as corrected so far."""
        return self._rates

    @property
    def fill_worth(self) -> float:
        """Misses that one fill saves later, less what its victim would have saved."""
        return self._reuse.net

    @property
    def mode(self) -> str:
        """What `auto` does now: "split", or "pure" while splits measure slower; else itself."""
        if self.strategy == "auto":
            return "pure" if self._judge.paused else "split"
        return self.strategy

    def split(
        self,
        layer: int,
        num_misses: int,
        num_tokens: int,
        max_fills: int,
        num_hits: int = 0,
        signs: Signs | None = None,
    ) -> Split:
        """Divide `num_misses` misses; at most `max_fills` of them may be filled.

        signs: those of the Lookup, from which the worth of a fill is learnt (None: half a miss is
        assumed). Where there is a choice, a miss that was demanded less often lately than what its
        fill would evict is not filled.
        fills + on_cpu is always num_misses. Under "fetch" and "resident" on_cpu is what max_fills
        leaves over: the caller may run that in further passes instead.
        """
        most = min(num_misses, max(max_fills, 0))
        if self.strategy in ("fetch", "resident"):
            fills = most
        elif self.strategy == "cpu":
            fills = 0
        else:
            most = most if signs is None else min(most, signs.worthy)
            fills = self._best(layer, num_misses, num_tokens, most, num_hits)
            fills = self._with_debt(layer, fills, num_misses, most)
        if signs is not None:
            self._reuse.add(signs, num_misses - fills, fills)
        self.counters.splits += 1
        self.counters.fills += fills
        self.counters.on_cpu += num_misses - fills
        return Split(fills, num_misses - fills)

    def observe(self, layer: int, split: Split, fill_s: float, cpu_s: float) -> None:
        """Correct the rates by the measured seconds of one layer's branches (0 = did not run)."""
        row_bytes, rates = self._row_bytes[layer], self._rates
        predicted = estimate(rates, row_bytes, split.fills, split.on_cpu)
        corrected = self._corrected
        if split.fills and fill_s > 0:
            fixed = rates.link_latency_s + split.fills * rates.copy_latency_s
            corrected = corrected.saw_fill(predicted.fill_s - fixed, fill_s - fixed)
        if split.on_cpu and cpu_s > 0:
            fixed = rates.cpu_latency_s
            busy = split.fills > 0
            corrected = corrected.saw_cpu(predicted.cpu_s - fixed, cpu_s - fixed, busy)
        if corrected is not self._corrected:
            self._corrected = corrected
            self._rates = corrected.rates
        if self.strategy == "auto":
            self._compare(layer, split, max(fill_s, cpu_s))

    def _best(self, layer: int, num_misses: int, num_tokens: int, most: int, num_hits: int) -> int:
        rates, row_bytes = self._rates, self._row_bytes[layer]
        # A wide step makes the CPU compute bound: the same bytes cost it more.
        wide = max(1.0, num_tokens / rates.cpu_free_tokens)
        candidates = range(most + 1)
        if self.mode == "pure" and most:
            candidates = range(0, most + 1, most)
        times = []
        for fills in candidates:
            guess = estimate(rates, row_bytes, fills, num_misses - fills, num_hits)
            times.append(max(guess.layer_s, guess.cpu_s * wide))
        # Later misses saved, at the mean cost of one now, count as seconds gained.
        worth = self._reuse.net * min(times) / max(num_misses, 1)
        best, best_s = 0, float("inf")
        for fills, layer_s in zip(candidates, times, strict=True):
            cost = layer_s - worth * fills
            # Of equal costs the larger fill: it warms the cache.
            if cost <= best_s + _TIE * layer_s:
                best, best_s = fills, min(cost, best_s)
        return best

    def _with_debt(self, layer: int, fills: int, num_misses: int, most: int) -> int:
        self._owed[layer] = False
        if not num_misses or not most:
            return fills
        fills = max(fills, min(self._min_fill, most))
        if fills:
            self._since_fill[layer] = 0
            return fills
        self._since_fill[layer] += 1
        if self._since_fill[layer] >= self._rates.fill_period:
            self._since_fill[layer] = 0
            self._owed[layer] = True
            self.counters.owed_fills += 1
            return 1
        return 0

    def _compare(self, layer: int, split: Split, observed_s: float) -> None:
        """Judge a layer that ran both branches against either alone, fills counted at their worth.

        An owed fill is paid for on purpose and is not judged.
        """
        mixed = split.fills > 0 and split.on_cpu > 0 and not self._owed[layer]
        pure_s = 0.0
        if mixed:
            row_bytes, misses = self._row_bytes[layer], split.fills + split.on_cpu
            fetch_s = estimate(self._rates, row_bytes, misses, 0).layer_s
            cpu_s = estimate(self._rates, row_bytes, 0, misses).layer_s
            worth = self._reuse.net * min(fetch_s, cpu_s) / misses
            pure_s = min(fetch_s - worth * misses, cpu_s)
            observed_s -= worth * split.fills
        if self._judge.add(mixed, observed_s, pure_s):
            self.counters.fallbacks += 1


class _Reuse:
    """What a fill is worth, in misses saved later: what it brings less what it evicts.

    share: probability p that a miss, once filled, is a hit when next demanded, counted on misses
    that were not filled: how many came back as regrets. While slots are free nothing is evicted
    and a fill saves p / (1 - p) misses in the end. Once they are full a fill brings p, and loses
    x / (1 + x): x hits its slot would have given in the (slots / fills per lookup) lookups it
    takes, seen from the hits among the coldest slots.
    """

    _DECAY = 0.9995
    _PRIOR = 32.0
    _SURE = 0.75

    def __init__(self) -> None:
        self._regrets = self._PRIOR / 2
        self._unfilled = self._PRIOR
        self._cold_hits = 0.0
        self._fills = self._PRIOR
        self._warming = False

    @property
    def share(self) -> float:
        return min(self._regrets / self._unfilled, 1.0)

    @property
    def net(self) -> float:
        if self._warming:
            chance = min(self.share, self._SURE)
            return chance / (1.0 - chance)
        lost = COLD_PART * self._cold_hits / self._fills
        return max(self.share - lost / (1.0 + lost), 0.0)

    def add(self, signs: Signs, unfilled: int, fills: int) -> None:
        self._warming = signs.warming
        self._regrets = self._regrets * self._DECAY + signs.regrets
        self._unfilled = max(self._unfilled * self._DECAY + unfilled, 1.0)
        self._cold_hits = self._cold_hits * self._DECAY + signs.cold_hits
        self._fills = max(self._fills * self._DECAY + fills, 1.0)


class _Judge:
    """Stops mixed splits for a while when they measure slower than either branch alone."""

    def __init__(self) -> None:
        self._pause = 0
        self._mixed = 0
        self._observed_s = self._pure_s = 0.0
        self._settling = _WINDOW

    @property
    def paused(self) -> bool:
        return self._pause > 0

    def add(self, mixed: bool, observed_s: float, pure_s: float) -> bool:
        """Fold in one layer; returns whether mixed splits were just stopped."""
        if self._pause:
            self._pause -= 1
            return False
        if not mixed:
            return False
        if self._settling:  # the rates are still being corrected
            self._settling -= 1
            return False
        self._mixed += 1
        self._observed_s += observed_s
        self._pure_s += pure_s
        if self._mixed < _WINDOW:
            return False
        lost = self._observed_s > _LOSING * self._pure_s
        self._mixed, self._observed_s, self._pure_s = 0, 0.0, 0.0
        self._pause = _PAUSE * _WINDOW if lost else 0
        return lost
