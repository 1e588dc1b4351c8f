"""What is trained, and by which loss: EAGLE heads on the target's features, and small models of their own.

EAGLE-3 heads are in ``eagle3_learner``.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear, silu, smooth_l1_loss

from wager.models.attention import rope_tables, rotate
from wager.training.batches import Batch, sent
from wager.training.config import Drafter

Rope = tuple[torch.Tensor, torch.Tensor]  # rotary tables of entries
Keys = tuple[torch.Tensor, torch.Tensor]  # keys and values of entries


def mixed(device: torch.device) -> torch.autocast:
    """The precision of training and judging: bfloat16 where that is faster."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class Target:
    """The target as training sees it: features, and the distributions they stand for."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        for weight in model.parameters():
            weight.requires_grad_(False)
        self.head, self.embed = model.lm_head.weight, model.get_input_embeddings().weight

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        where: torch.device = self.embed.device
        return where

    @torch.no_grad()
    def features(self, batch: Batch, layers: Sequence[int] = ()) -> torch.Tensor:
        """At every token what the LM head is applied to, then the states after so many layers each.

        (texts, longest, (1 + layers) * hidden)
        """
        tokens = sent(batch.tokens, self.device)
        out = self.model.model(input_ids=tokens, use_cache=False, output_hidden_states=bool(layers))
        last: torch.Tensor = out.last_hidden_state
        return torch.cat((last, *(out.hidden_states[layer] for layer in layers)), -1) if layers else last


def _products(sizes: dict[str, tuple[int, int]]) -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({f"{name}_proj": torch.nn.Linear(*size, bias=False) for name, size in sizes.items()})


class Layer(torch.nn.Module):
    """One decoder layer without a norm before its attention, over several draft steps at once."""

    def __init__(self, config: Any, entering: int = 0) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        entering = entering or hidden  # numbers of an entry that attention reads
        self.head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        self.heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        queries, shared = self.heads * self.head, self.num_kv_heads * self.head
        sizes = {"q": (entering, queries), "k": (entering, shared), "v": (entering, shared), "o": (queries, hidden)}
        self.self_attn = _products(sizes)
        self.mlp = _products({"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)})
        self.post_attention_layernorm = torch.nn.RMSNorm(hidden, eps=config.rms_norm_eps)

    def keys(self, x: torch.Tensor, rope: Rope) -> Keys:
        """Keys and values of entries, (texts, kv heads, 1, entries, head) each."""
        k, v = (self._split(self.self_attn[f"{name}_proj"](x)) for name in "kv")
        return rotate(k, *rope), v

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, rope: Rope, true: Keys, seen: torch.Tensor, own: list[Keys]
    ) -> torch.Tensor:
        """One draft step at (texts, width) entries of the text, the first or with its own keys the last of ``own``.

        It sees the true entries up to where its draft began (``seen``: texts, 1, 1, width, entries), and the draft's
        own steps after them; what attention makes of that is added to ``residual``.
        """
        texts, width, _ = x.shape
        by, step, entries = self.self_attn, len(own), seen.shape[-1]
        q = rotate(self._split(by["q_proj"](x)), *rope) * self.head**-0.5
        scores = (q @ true[0].transpose(-1, -2)).masked_fill(~seen, -1e4)
        near = [(q * back(key, step - at)).sum(-1, keepdim=True) for at, (key, _) in enumerate(own, 1)]
        weights = torch.softmax(torch.cat((scores, *near), -1), -1, dtype=torch.float32).to(x.dtype)
        mixed = weights[..., :entries] @ true[1]
        for at, (_, value) in enumerate(own, 1):
            mixed = mixed + weights[..., entries + at - 1, None] * back(value, step - at)
        x = residual + by["o_proj"](mixed.permute(0, 3, 1, 2, 4).reshape(texts, width, -1))
        y = self.post_attention_layernorm(x)
        out: torch.Tensor = x + self.mlp["down_proj"](silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))
        return out

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(texts, entries, size) by heads: (texts, kv heads, heads of each or 1, entries, head)."""
        return x.view(*x.shape[:2], self.num_kv_heads, -1, self.head).permute(0, 2, 3, 1, 4)


def _at(x: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """(texts, longest, size) at (texts, width) entries."""
    return x.gather(1, entries[..., None].expand(-1, -1, x.shape[-1]))


def back(x: torch.Tensor, by: int) -> torch.Tensor:
    """What stood so many entries earlier, (..., entries, size); zeros before the first."""
    return x if not by else torch.cat((torch.zeros_like(x[..., :by, :]), x[..., :-by, :]), -2)


class EagleHead(torch.nn.Module):
    """The trained tensors of a head, called as they are stored."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = torch.nn.ModuleList([Layer(config)])


class EagleLearner:
    """Trains a head through its own drafts, so that they stay good at depth.

    Entry j joins the feature at token j with token j + 1 and should give the feature at j + 1, from which the target
    predicts token j + 2. In draft step s the feature is what step s - 1 made one entry earlier.
    """

    layers: tuple[int, ...] = ()  # after how many layers the target's states are read, beside its features
    module: Any

    def __init__(self, target: Target, drafter: Drafter, config: Any, columns: torch.Tensor | None = None) -> None:
        self.target, self.drafter, self.device = target, drafter, target.device
        self.module = self._made(config).to(self.device)
        # The tokens it may draft, by id; over the others nothing is computed.
        self.columns = None if columns is None else columns.to(self.device)
        self.output = target.head if self.columns is None else target.head[self.columns]

    def _made(self, config: Any) -> torch.nn.Module:
        return EagleHead(config)

    def _read(self, batch: Batch, features: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's features, which its distributions follow from, and what the head reads of it."""
        found = self.target.features(batch, self.layers) if features is None else features
        hidden = self.target.embed.shape[1]
        return found[..., :hidden], found[..., hidden:] if self.layers else found

    def _entering(self, read: torch.Tensor) -> torch.Tensor:
        """Of what was read of the target the features of entries."""
        return read

    def _entries(self, known: torch.Tensor, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads of entries, of embeddings and features, and what its output is added to."""
        x: torch.Tensor = self.module.fc(torch.cat((known, feature), -1))
        return x, x

    def _logits(self, out: torch.Tensor) -> torch.Tensor:
        """Of the tokens that it may draft."""
        return linear(out, self.output)

    def _distance(self, made: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """What the loss has beside the cross-entropy."""
        return self.drafter.feature * smooth_l1_loss(made.float(), after.float())

    def _steps(self, batch: Batch, features: torch.Tensor, entries: torch.Tensor) -> Iterator[torch.Tensor]:
        """What every draft step makes of these entries, (texts, width, hidden); of the others only keys are needed."""
        known = self.target.embed[sent(batch.tokens[:, 1:].contiguous(), self.device)]
        layer: Any = self.module.layers[0]
        x, residual = self._entries(known, self._entering(features[:, :-1]))
        cos, sin = (t[:, 0] for t in rope_tables(self.target.model.model.rotary_emb, known.shape[1], features))
        true = layer.keys(x, (cos, sin))
        rope = cos[entries][:, None, None], sin[entries][:, None, None]
        alone = None if residual is x else _at(residual, entries)
        known, x = _at(known, entries), _at(x, entries)
        residual = x if alone is None else alone
        own: list[Keys] = []
        for step in range(self.drafter.unroll):
            seen = torch.arange(len(cos), device=self.device) <= entries[..., None] - step
            out = layer(x, residual, rope, true, seen[:, None, None], own)
            yield out
            if step + 1 < self.drafter.unroll:
                x, residual = self._entries(known, back(out, 1).to(known.dtype))
                own.append(layer.keys(x, rope))

    def loss(self, batch: Batch, features: torch.Tensor | None = None) -> torch.Tensor:
        """How far its drafts of the answers are from the target's; ``features`` where they are known."""
        # Entries whose token to be drafted belongs to an answer; looked for on the CPU: the device is not waited for.
        entries, at = (sent(x, self.device) for x in batch.window(self.drafter.unroll - 1))
        if not len(at):  # answers of a token or two leave nothing to draft
            nothing: torch.Tensor = self.module.fc.weight.sum() * 0.0
            return nothing
        features, read = self._read(batch, features)
        after = _at(features[:, 1:], entries).flatten(0, 1).index_select(0, at)
        wanted = torch.softmax(linear(after, self.output), -1)
        total, weight, weights = torch.zeros((), device=after.device), 1.0, 0.0
        for out in self._steps(batch, read, entries):
            made = out.flatten(0, 1).index_select(0, at).to(after.dtype)
            loss = soft_cross_entropy(self._logits(made), wanted) + self._distance(made, after)
            total, weights = total + weight * loss, weights + weight
            weight *= self.drafter.decay
        return total / weights

    @torch.no_grad()
    def accepted(self, batch: Batch, features: torch.Tensor | None = None) -> torch.Tensor:
        """(texts, longest): of a draft made when the text reaches to this token, how many tokens are the target's own.

        A negative number where no draft is judged; the texts are greedy ones.
        """
        entries, at = (sent(x, self.device) for x in batch.window(0))
        features, read = self._read(batch, features)
        choices = linear(_at(features[:, 1:], entries).flatten(0, 1)[at], self.target.head).argmax(-1)
        right = torch.zeros(entries.numel(), dtype=torch.bool, device=self.device)
        count, alive = torch.zeros_like(entries), torch.empty(0)
        for step, out in enumerate(self._steps(batch, read, entries)):
            drafted = self._logits(out.flatten(0, 1)[at].to(features.dtype)).argmax(-1)
            right[at] = (drafted if self.columns is None else self.columns[drafted]) == choices
            here = right.view(entries.shape)
            alive = here.clone() if not step else back(alive[..., None], 1)[..., 0] & here
            count += torch.cat((alive[:, step:], torch.zeros_like(alive[:, :step])), 1)  # where the draft began
        # An entry ends at the token after its own.
        found = torch.full(batch.tokens.shape, -1, device=self.device)
        found[at // entries.shape[1], entries.flatten()[at] + 1] = count.flatten()[at]
        return found


class SmallLearner:
    """Trains a small model of its own to say what the target says."""

    layers: tuple[int, ...] = ()
    columns: torch.Tensor | None = None  # it may draft any token

    def __init__(self, target: Target, drafter: Drafter, config: Any) -> None:
        from transformers import LlamaForCausalLM

        self.target, self.drafter = target, drafter
        made: Any = LlamaForCausalLM(config)
        self.module = made.to(target.device)
        # It starts from the target's own embedding, squeezed into the directions that it uses most.
        centred = target.embed.float() - target.embed.float().mean(0)
        weight = self.module.get_input_embeddings().weight
        with torch.no_grad():
            squeezed = centred @ torch.pca_lowrank(centred, weight.shape[1], niter=4)[2]
            weight.copy_(squeezed * (0.02 / squeezed.std()))

    def _logits(self, batch: Batch, judged: torch.Tensor) -> torch.Tensor:
        tokens = sent(batch.tokens, self.target.device)
        hidden = self.module.model(input_ids=tokens, use_cache=False).last_hidden_state
        out: torch.Tensor = self.module.lm_head(hidden[judged])
        return out

    def loss(self, batch: Batch, features: torch.Tensor | None = None) -> torch.Tensor:
        """How far its predictions are from the target's; ``features`` where they are known."""
        judged = sent(batch.continued(), self.target.device)
        features = self.target.features(batch) if features is None else features
        wanted = torch.softmax(linear(features[judged], self.target.head), -1)
        return soft_cross_entropy(self._logits(batch, judged), wanted)

    @torch.no_grad()
    def accepted(self, batch: Batch, features: torch.Tensor | None = None) -> torch.Tensor:
        """On greedy texts the small model reads what it would have drafted for as long as it is right."""
        judged = sent(batch.continued(), self.target.device)
        features = self.target.features(batch) if features is None else features
        choices = linear(features[judged], self.target.head).argmax(-1)
        right = torch.zeros_like(judged)
        right[judged] = self._logits(batch, judged).argmax(-1) == choices
        alive, count = right, right.long()
        for _ in range(1, self.drafter.unroll):
            right = torch.cat((right[:, 1:], torch.zeros_like(right[:, :1])), 1)
            alive = alive & right
            count += alive
        return torch.where(judged, count, -1)


Learner = EagleLearner | SmallLearner

# -- the loss, over a whole vocabulary in little memory


def _rows(logits: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of each row, and its gradient by the logits."""
    exact = logits.float()
    total = torch.logsumexp(exact, -1, keepdim=True)
    loss = total[:, 0] - (wanted.float() * exact).sum(-1)
    return loss, (torch.exp(exact - total) - wanted.float()).to(logits.dtype)


@cache
def _compiled() -> Any:
    return torch.compile(_rows, dynamic=True)


class _SoftCrossEntropy(torch.autograd.Function):
    """Keeps the gradient instead of what it is made of."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss, gradient = (_compiled() if logits.is_cuda else _rows)(logits, wanted)
        ctx.save_for_backward(gradient)
        mean: torch.Tensor = loss.mean()
        return mean

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * (outer[0] / len(gradient)).to(gradient.dtype), None


def soft_cross_entropy(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The mean over rows of - sum of wanted * log softmax(logits); both (rows, vocabulary), wanted a distribution."""
    mean: torch.Tensor = _SoftCrossEntropy.apply(logits, wanted)  # type: ignore[no-untyped-call]
    return mean
