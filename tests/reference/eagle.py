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
        self.embed = self.w.get("embed_tokens", self.embed)
        self.output = model.get_output_embeddings().weight.detach().double()  # type: ignore[attr-defined]

    def x(self, entry: Entry) -> torch.Tensor:
        joined = torch.cat((self.embed[entry.token], entry.feature.double()))
        return self.w["fc"] @ joined + self.w.get("fc.bias", torch.zeros(()))

    def residual(self, entry: Entry) -> torch.Tensor:
        return self.x(entry)

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
        whole = whole + self.w.get(f"self_attn.{name}_proj.bias", torch.zeros(()))
        size = self.w["self_attn.q_proj"].shape[0] // self.heads
        found = whole[head * size : (head + 1) * size]
        norm = self.w.get(f"self_attn.{name}_norm")
        return found if norm is None else self.normed(found, norm)

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean() + self.eps) * weight

    def out(self, entry: Entry) -> torch.Tensor:
        mixed = []
        for head in range(self.heads):
            group = head * self.num_kv_heads // self.heads
            q = self.turned(self.part("q", entry, head), entry.position)
            seen = [*entry.sees, entry]
            keys = torch.stack([self.turned(self.part("k", e, group), e.position) for e in seen])
            values = torch.stack([self.part("v", e, group) for e in seen])
            mixed.append(torch.softmax(keys @ q / math.sqrt(len(q)), 0) @ values)
        r = self.residual(entry) + self.w["self_attn.o_proj"] @ torch.cat(mixed)
        y = self.normed(r, self.w["post_attention_layernorm"])
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


class SlowEagle3(SlowHead):
    """The same for an EAGLE-3 head, its tensors called as its authors call them; the residual is not normed."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: dict[str, object], model: object) -> None:
        maps = {"d2t", "t2d"}
        floats = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items() if name not in maps}
        super().__init__(floats, config, model)
        self.ids = [i + int(offset) for i, offset in enumerate(tensors["d2t"])]

    def x(self, entry: Entry) -> torch.Tensor:
        embedded = self.normed(self.embed[entry.token], self.w["input_layernorm"])
        return torch.cat((embedded, self.normed(entry.feature.double(), self.w["hidden_norm"])))

    def residual(self, entry: Entry) -> torch.Tensor:
        return entry.feature.double()

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        whole = torch.full((len(self.embed),), -math.inf, dtype=torch.float64)
        whole[self.ids] = self.w["lm_head"] @ self.normed(out, self.w["norm"])
        return whole

    def features(self, model: object, text: list[int]) -> torch.Tensor:
        """What the head goes on from at each token of a text."""
        with torch.no_grad():
            states = model(torch.tensor([text]), output_hidden_states=True).hidden_states  # type: ignore[operator]
        layers = len(states) - 1
        chosen = [states[at][0].double() for at in (2, layers // 2, layers - 3)]
        return torch.cat(chosen, -1) @ self.w["fc"].T
