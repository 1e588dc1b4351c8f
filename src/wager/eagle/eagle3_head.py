"""An EAGLE-3 head: one decoder layer that goes on from several of the target's states.

Entry p joins token p + 1 with a feature: of the target's states at token p, from three of its layers, or, while it
drafts, its own output for p. Embedding and feature are normed and joined as they are, and fc joins the states:

    feature = fc(states);  x = (rmsnorm(embed(token)), rmsnorm(feature))
    r = feature + attention(x);  out = r + mlp(rmsnorm(r));  logits = lm_head(rmsnorm(out))

It may draft some of the vocabulary only, with an LM head of its own (Li et al. 2025). The arithmetic is vLLM's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding

from wager.core.require import require
from wager.eagle.checkpoint import EMBED, LM_HEAD
from wager.eagle.formats import Eagle3, default_layers
from wager.eagle.head import Head
from wager.eagle.pruned_lm_head import PrunedLMHead
from wager.models.norm import rms_norm
from wager.models.runner import Runner


class Eagle3Head(Head):
    """One EAGLE-3 head over a cache of its own entries; what is drafted and cropped is as in ``Head``."""

    layers: tuple[int, ...] = ()  # of the target, after so many of which it is read

    @property
    def settings(self) -> Eagle3:
        """What its configuration says."""
        assert self.file.eagle3 is not None
        return self.file.eagle3

    @property
    def given(self) -> int:
        return (len(self.settings.layers) or 3) * self.settings.target_hidden

    def check(self, target: Runner) -> None:
        super().check(target)
        layers = self.settings.layers or default_layers(target.depth)
        fits = list(layers) == sorted(set(layers)) and layers[0] >= 0
        few = f"the head in {self.file.folder} reads the target after layers {', '.join(map(str, layers))}"
        require(fits, f"{few}, and it has {target.depth}; take one made for it")
        self.layers = layers

    def _sizes(self, target: Runner) -> Sequence[tuple[str, int, int]]:
        sizes = [("states of size", self.settings.target_hidden, target.hidden)]
        sizes += [("a vocabulary of", self.vocabulary, target.vocabulary)]
        if EMBED not in self.file.tensors:
            sizes.append(("embeddings of size", self.hidden, target.embed.shape[1]))
        if LM_HEAD not in self.file.tensors:
            sizes.append(("hidden size", self.hidden, target.hidden))
        return sizes

    def _watch(self, target: Runner) -> None:
        target.watch(self.layers)

    def _output(self, target: Runner) -> PrunedLMHead | None:
        own, ids = self.file.tensors.get(LM_HEAD), self.file.frequent
        if own is None:
            return None
        ids = torch.arange(len(own)) if ids is None else ids
        return PrunedLMHead(own.to(self.embed.device, self.embed.dtype), None, ids)

    def _place(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._place(device, dtype)

        def norm(name: str) -> Tensor:
            return self.file.tensors[f"{name}.weight"].to(device, dtype)

        self.embed_norm, self.feature_norm = norm("layers.0.input_layernorm"), norm("layers.0.hidden_norm")
        self.final_norm = norm("norm")
        self.states_norm = norm("input_norm") if self.settings.norm_before_fc else None
        self.state_norms = [norm(f"fc_norm.{at}") for at in range(len(self.layers) if self.settings.fc_norm else 0)]
        if "layers.0.self_attn.q_norm.weight" in self.file.tensors:
            self.q_norm, self.k_norm = norm("layers.0.self_attn.q_norm"), norm("layers.0.self_attn.k_norm")

    def features_of(self, target: Runner, start: int, end: int) -> Tensor:
        return torch.cat([target.states[layer][start:end] for layer in self.layers], dim=-1)

    def entering(self, features: Tensor) -> Tensor:
        if self.states_norm is not None:
            features = rms_norm(features, self.states_norm, self.eps)
        if self.state_norms:
            states = zip(features.chunk(len(self.state_norms), dim=-1), self.state_norms, strict=True)
            features = torch.cat([rms_norm(state, norm, self.eps) for state, norm in states], dim=-1)
        return self.by["fc"](features)

    def logits(self, out: Tensor) -> Tensor:
        return super().logits(out if self.settings.norm_output else self._normed(out, self.final_norm))

    def _normed(self, x: Tensor, norm: Tensor) -> Tensor:
        return rms_norm(x, norm, self.eps)

    def _layer(
        self,
        tokens: Tensor,
        features: Tensor,
        at: slice | Tensor,
        end: int,
        rope: tuple[Tensor, Tensor],
        unseen: Tensor | None,
    ) -> Tensor:
        embedded = self._normed(embedding(tokens, self.embed), self.embed_norm)
        normed = self._normed(features, self.feature_norm)
        mixed = self._attention(torch.cat((embedded, normed), dim=-1), at, end, rope, unseen)
        out = self._mlp(mixed.add_(normed if self.settings.norm_before_residual else features))
        return self._normed(out, self.final_norm) if self.settings.norm_output else out
