"""An EAGLE head one entry at a time, in float64, nothing kept: slow and obvious."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch


@dataclass
class Entry:
    """A token joined with the feature before it."""

    token: int
    feature: torch.Tensor
    position: int
    sees: list[Entry] = field(default_factory=list)  # entries before it; itself it always sees


class SlowHead:
    """What a head makes of an entry, and drafts with it."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: dict[str, object], model: object) -> None:
        self.w = {name.removeprefix("layers.0.").removesuffix(".weight"): t.double() for name, t in tensors.items()}
        self.heads, self.num_kv_heads = int(config["num_attention_heads"]), int(config["num_key_value_heads"])  # type: ignore[call-overload]
        self.theta, self.eps = float(config["rope_theta"]), float(config["rms_norm_eps"])  # type: ignore[arg-type]
        self.embed = model.get_input_embeddings().weight.detach().double()  # type: ignore[attr-defined]
        self.output = model.get_output_embeddings().weight.detach().double()  # type: ignore[attr-defined]

    def x(self, entry: Entry) -> torch.Tensor:
        return self.w["fc"] @ torch.cat((self.embed[entry.token], entry.feature.double()))

    def turned(self, vector: torch.Tensor, position: int) -> torch.Tensor:
        """Rotary: pairs (i, i + half) as complex numbers, turned by position / theta^(2i / size)."""
        half = len(vector) // 2
        made = torch.empty_like(vector)
        for i in range(half):
            angle = position * self.theta ** (-2 * i / len(vector))
            cos, sin = math.cos(angle), math.sin(angle)
            made[i] = vector[i] * cos - vector[i + half] * sin
            made[i + half] = vector[i + half] * cos + vector[i] * sin
        return made

    def part(self, name: str, entry: Entry, head: int) -> torch.Tensor:
        whole = self.w[f"self_attn.{name}_proj"] @ self.x(entry)
        size = self.w["self_attn.q_proj"].shape[0] // self.heads
        return whole[head * size : (head + 1) * size]

    def out(self, entry: Entry) -> torch.Tensor:
        mixed = []
        for head in range(self.heads):
            group = head * self.num_kv_heads // self.heads
            q = self.turned(self.part("q", entry, head), entry.position)
            seen = [*entry.sees, entry]
            keys = torch.stack([self.turned(self.part("k", e, group), e.position) for e in seen])
            values = torch.stack([self.part("v", e, group) for e in seen])
            mixed.append(torch.softmax(keys @ q / math.sqrt(len(q)), 0) @ values)
        r = self.x(entry) + self.w["self_attn.o_proj"] @ torch.cat(mixed)
        y = r / torch.sqrt((r * r).mean() + self.eps) * self.w["post_attention_layernorm"]
        gate, up = self.w["mlp.gate_proj"] @ y, self.w["mlp.up_proj"] @ y
        return r + self.w["mlp.down_proj"] @ (gate * torch.sigmoid(gate) * up)

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        return self.output @ out

    # -- texts and drafts

    def entries(self, text: list[int], features: torch.Tensor, kept: list[int] | None = None) -> list[Entry]:
        """The text's entries, each seeing those before it; only ``kept`` of them, where that is given."""
        made: list[Entry] = []
        for p in range(len(text) - 1) if kept is None else kept:
            made.append(Entry(text[p + 1], features[p], p, list(made)))
        return made

    def chain(self, entries: list[Entry], length: int, among: list[int] | None = None) -> list[int]:
        """The likeliest tokens one after the other, out of ``among``."""
        last, tokens = entries[-1], []
        for _ in range(length):
            out = self.out(last)
            tokens.append(self.likeliest(self.logits(out), 1, among)[0][0])
            last = Entry(tokens[-1], out, last.position + 1, [*last.sees, last])
        return tokens

    def likeliest(self, logits: torch.Tensor, count: int, among: list[int] | None = None) -> list[tuple[int, float]]:
        columns = list(range(len(logits))) if among is None else among
        logp = torch.log_softmax(logits[columns], 0)
        best = sorted(range(len(columns)), key=lambda i: -float(logp[i]))[:count]
        return [(columns[i], float(logp[i])) for i in best]

    def tree(self, entries: list[Entry], depth: int, breadth: int, nodes: int) -> dict[tuple[int, ...], float]:
        """EAGLE-2: paths of tokens and how likely each is (its logarithm)."""
        every: dict[tuple[int, ...], float] = {}
        newest = {(): (0.0, entries[-1])}
        for _ in range(depth):
            grown: dict[tuple[int, ...], tuple[float, Entry]] = {}
            for path, (score, entry) in sorted(newest.items(), key=lambda item: -item[1][0])[:breadth]:
                out = self.out(entry)
                for token, logp in self.likeliest(self.logits(out), breadth):
                    below = Entry(token, out, entry.position + 1, [*entry.sees, entry])
                    grown[*path, token] = (score + logp, below)
            every |= {path: score for path, (score, _) in grown.items()}
            newest = grown
        return dict(sorted(every.items(), key=lambda item: -item[1])[:nodes])
