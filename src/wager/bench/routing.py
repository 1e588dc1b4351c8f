"""Routing by the prompt, once, as MetaSD's baseline does: a classifier picks the drafter before the first round."""

from collections.abc import Sequence

import torch

from wager.core import OFF, Arm, Context, require
from wager.policies import Policy

STEPS = 300
DECAY = 1e-3  # of the classifier's weights


class Classifier:
    """Tells a prompt's domain from the mean of its tokens' embeddings, by softmax regression."""

    def __init__(self, embed: torch.Tensor, prompts: Sequence[tuple[str, Sequence[int]]]) -> None:
        self.domains = sorted({domain for domain, _ in prompts})
        require(len(self.domains) >= 2, f"a classifier needs prompts of at least two domains, not of {self.domains}")
        self.embed = embed.detach()
        seen = torch.stack([self._mean(ids) for _, ids in prompts])
        self.middle, self.spread = seen.mean(0), seen.std(0) + 1e-6
        wanted = torch.tensor([self.domains.index(domain) for domain, _ in prompts], device=seen.device)
        self.weight = torch.zeros(len(self.domains), seen.shape[1] + 1, device=seen.device, requires_grad=True)
        chooser = torch.optim.Adam([self.weight], lr=0.05, weight_decay=DECAY)
        inputs = self._inputs(seen)
        for _ in range(STEPS):
            chooser.zero_grad()
            torch.nn.functional.cross_entropy(inputs @ self.weight.T, wanted).backward()  # type: ignore[no-untyped-call]
            chooser.step()

    def __call__(self, ids: Sequence[int]) -> str:
        """The domain a prompt is taken for."""
        scores = self._inputs(self._mean(ids)[None]) @ self.weight.detach().T
        return self.domains[int(scores.argmax())]

    def _mean(self, ids: Sequence[int]) -> torch.Tensor:
        return self.embed[torch.tensor(list(ids), device=self.embed.device)].float().mean(0)

    def _inputs(self, means: torch.Tensor) -> torch.Tensor:
        scaled = (means - self.middle) / self.spread
        return torch.cat((scaled, torch.ones_like(scaled[:, :1])), 1)


class Routed(Policy):
    """Plays one arm for a whole text; whoever starts the text sets it."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__([arm for arm in arms if arm != OFF])
        self.arm = self.arms[0]

    def take(self, domain: str) -> None:
        """The arm of the drafter called after a domain, or of the one for everything, which stands first."""
        self.arm = next((arm for arm in self.arms if arm.drafter.rpartition(":")[2] == domain), self.arms[0])

    def choose(self, context: Context) -> Arm:
        return self.arm
