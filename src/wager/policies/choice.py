"""What a policy chose, refused where it was not offered: policies of the user's own may return anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wager.core import Arm, Context
from wager.core.batch import Batch, Choices

if TYPE_CHECKING:
    from wager.policies.base import Policy


def choice_of(policy: Policy, context: Context) -> Arm:
    """The arm that the policy chooses, one of ``context.arms``."""
    arm = policy.choose(context)
    check_choice(policy, arm, context)
    return arm


def choices_of(policy: Policy, batch: Batch) -> Choices:
    """The drafter and the length that the policy chooses for every request."""
    choices = policy.choose_batch(batch)
    check_choices(policy, choices, batch)
    return choices


def check_choice(policy: Policy, arm: Arm, context: Context) -> None:
    """Refuse an arm that the context does not offer, or that has something merged where nothing can be."""
    known, offered = policy.offered
    if known is not context.arms:  # engines reuse one tuple while the set does not change
        offered = frozenset(context.arms)
        policy.offered = context.arms, offered
    merged = arm.merged if isinstance(arm, Arm) else None
    there = merged is None or any(one.drafter == merged.drafter for one in context.arms)
    if not isinstance(arm, Arm) or arm.alone not in offered or not there:
        said, arms = arm if isinstance(arm, Arm) else repr(arm), ", ".join(map(str, context.arms))
        raise ValueError(
            f"policy {type(policy).__name__} chose {said}, which is no arm of this round; there are {arms}"
        )
    if merged is not None and not context.merges:
        raise ValueError(f"no draft can be merged into another here; play {arm.alone}, not {arm}")


def check_choices(policy: Policy, choices: Choices, batch: Batch) -> None:
    """Refuse drafters and lengths that are not one each for every request, or that no drafter has."""
    requests, longest, drafters = len(batch.slots), batch.confidence.shape[2], len(policy.drafters)
    drafter, length = choices.drafter, choices.length
    arrays = all(isinstance(one, np.ndarray) and one.dtype.kind in "iu" for one in (drafter, length))
    fits = arrays and drafter.shape == length.shape == (requests,)
    there = fits and ((drafter >= -1) & (drafter < drafters) & (length >= 0) & (length <= longest)).all()
    if not there or not ((drafter >= 0) | (length == 0)).all():
        said = f"there are {requests} requests, {drafters} drafters and drafts of 0 to {longest} tokens"
        raise ValueError(f"policy {type(policy).__name__} chose drafters {drafter} and lengths {length}; {said}")
