"""A policy that fails ends no engine: from then on nothing is drafted, and every text is what it would be.

One that chooses what is not there fails too: the engine's hooks take a guarded policy's choices as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from wager.core import OFF
from wager.core.batch import Choices
from wager.policies import Policy
from wager.policies.choice import check_choice, check_choices

log = logging.getLogger("vllm.wager")

# What engines ask of a policy in every step, and the answers of one that has failed: plain decoding.
PLAIN: dict[str, Callable[[Any], Any]] = {
    "select_drafters": lambda context: (),
    "choose": lambda context: OFF,
    "choose_batch": lambda batch: Choices.off(len(batch.slots)),
    "observe": lambda told: None,
    "observe_batch": lambda result: None,
}
# What answers are checked by: an engine cannot play what is not there.
CHECKS: dict[str, Callable[[Policy, Any, Any], None]] = {"choose": check_choice, "choose_batch": check_choices}


def guard(policy: Policy) -> Policy:
    """The same policy, which decodes plainly from its first error on; the error is logged.

    It is the same object, so that whoever saves its state, or knows it by its identity or class, still does.
    """
    if not vars(policy).get("guarded"):
        guarded = _Guarded(policy)
        vars(policy).update({name: guarded.method(name) for name in PLAIN}, guarded=True)
    return policy


class _Guarded:
    """One policy, and whether it has failed."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.failed = policy, False

    def method(self, name: str) -> Callable[[Any], Any]:
        """The policy's method of this name, or its answer in PLAIN once any of them has failed."""
        own, plain, check = getattr(self.policy, name), PLAIN[name], CHECKS.get(name)

        def call(asked: Any) -> Any:
            if not self.failed:
                try:
                    answer = own(asked)
                    if check is not None:
                        check(self.policy, answer, asked)
                    return answer
                except Exception:  # a policy of the user's own, or a damaged state: any error there is
                    self._fail(name)
            return plain(asked)

        return call

    def _fail(self, name: str) -> None:
        self.failed = True
        self.policy.exploring = False  # an engine does not take plain decoding for a trial
        which = type(self.policy).__name__
        after = "nothing is drafted from now on, and texts are not affected"
        log.error("wager: policy %s failed in %s; %s", which, name, after, exc_info=True)
