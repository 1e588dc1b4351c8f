"""What an engine is told: who drafts, how long at most, and who decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from wager.core import OFF, Arm
from wager.drafters import registry, shipped
from wager.policies import POLICIES, Policy, build
from wager.policies.registry import parse

KEY = "wager"  # in vLLM's additional_config
SCHEDULER, PROPOSER = "scheduler", "proposer"  # the two hooks

# Drafters that vLLM runs itself, one in an engine, and the method each is to vLLM.
ENGINE_DRAFTERS = {"ngram": "ngram", "draft-model": "draft_model", "eagle": "eagle", "eagle3": "eagle3"}
NAMED = {
    "eagle": "eagle",
    "draft": "draft-model",
}  # what stands before the colon of eagle:NAME, and which of them it is
# Drafters that wager runs, any number of them side by side.
OWN_DRAFTERS = ("prompt-lookup", "suffix", "retrieval")
DRAFTERS, POLICY, MAX_LENGTH = ("suffix", "prompt-lookup"), "auto", 5  # the defaults
LONGEST = 32  # tokens a request may ever draft in a step
TOKENS = 1_000_000  # an engine's life, for policies that plan for a number of tokens


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine's speculation, refused with one sentence where it cannot be meant."""

    drafters: tuple[str, ...] = DRAFTERS  # as written: suffix, retrieval=PATH, eagle=MODEL, eagle:NAME, …
    max_length: int = MAX_LENGTH  # tokens
    policy: str = POLICY
    budget: int = 0  # most draft tokens in a step over all requests; 0: no limit
    uniform: str = "auto"  # drafts of the maximum length or none for a whole step: auto (when it pays), always, never
    seed: int = 0  # the policy's
    state: str = ""  # file that keeps what the policy learned; empty: none
    control: str = ""  # file whose content names the policy to play now; for experiments
    log_seconds: float = 10.0  # between log lines; 0: none

    def __post_init__(self) -> None:
        if not 1 <= self.max_length <= LONGEST:
            raise ValueError(f"the maximum length is 1 to {LONGEST} tokens, not {self.max_length}")
        if self.budget < 0:
            raise ValueError(f"the token budget is 0 (none) or more, not {self.budget}")
        if self.uniform not in ("auto", "always", "never"):
            raise ValueError(f"uniform is auto, always or never, not {self.uniform!r}")
        if not self.log_seconds >= 0:
            raise ValueError(f"log_seconds is 0 (none) or more, not {self.log_seconds}")
        names = [name for name, _ in map(parse_drafter, self.drafters)]
        if not names:
            raise ValueError(f"name at least one drafter: {_choices()}")
        if len(set(names)) != len(names):
            raise ValueError(f"a drafter is named twice in {', '.join(self.drafters)}")
        engines = [name for name in names if engine_kind(name)]
        if engines and len(names) > 1:
            raise ValueError(
                f"vLLM runs drafter {engines[0]!r} itself and only one such in an engine, alone; "
                f"several side by side can be {', '.join(OWN_DRAFTERS)}"
            )
        if self.budget and self.hook == SCHEDULER:
            raise ValueError(f"a token budget is for {', '.join(OWN_DRAFTERS)}; {names[0]} drafts one length for all")
        self.build_policy()

    @property
    def hook(self) -> str:
        """Which of vLLM's hooks carries it."""
        return SCHEDULER if engine_kind(self.names[0]) else PROPOSER

    @property
    def names(self) -> tuple[str, ...]:
        """The drafters' names, as in arms."""
        return tuple(parse_drafter(spec)[0] for spec in self.drafters)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Plain decoding, then every drafter with the lengths worth telling apart."""
        return OFF, *(Arm(name, length) for name in self.names for length in self._lengths())

    def _lengths(self) -> Sequence[int]:
        every = range(1, self.max_length + 1)
        if self.uniform == "always":
            return every[-1:]
        # Each further arm has to be tried: several drafters get about three lengths each.
        return every if len(self.drafters) == 1 else sorted({n for n in (2, 4, 8, 16) if n < every[-1]} | {every[-1]})

    def build_policy(self, spec: str | None = None) -> Policy:
        """The policy over these arms: the chosen one, or another by its specification."""
        spec = spec or self.policy
        name, given = parse(spec)
        if name == "fixed" and not {"drafter", "length"} <= given.keys():
            raise ValueError(f"policy 'fixed' needs both, as in fixed:drafter={self.names[0]},length={self.max_length}")
        if not self.budget:
            return build(spec, self.arms, seed=self.seed, tokens=TOKENS)
        able = [key for key, entry in POLICIES.items() if "budget" in entry.parameters]
        if name not in able:
            raise ValueError(f"policy {name!r} has no token budget; {', '.join(able)} has")
        return build(spec, self.arms, seed=self.seed, budget=self.budget)

    def additional_config(self) -> dict[str, Any]:
        """As vLLM's additional_config carries it to the engine's processes."""
        default = {f.name: f.default for f in fields(self)}
        said = {k: v for k, v in asdict(self).items() if v != default[k] or k in ("drafters", "max_length")}
        return {KEY: {**said, "drafters": list(self.drafters), "policy": self.policy}}

    @classmethod
    def of(cls, additional_config: Any) -> Settings:
        """The settings an engine was started with."""
        given = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
        if not isinstance(given, Mapping):
            raise ValueError(
                f"vLLM was started with wager's hook but without its settings; start it with `wager serve`, or pass "
                f"what wager.vllm.engine_args gives, additional_config={{{KEY!r}: …}} included"
            )
        unknown = set(given) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"additional_config[{KEY!r}] has no setting {', '.join(sorted(unknown))}")
        return cls(**{**given, "drafters": tuple(given.get("drafters", ()))})


def parse_drafter(spec: str) -> tuple[str, str]:
    """The name and the value of a drafter for serving, both checked; whether a shipped one is there is not.

    The name is the arms': ``eagle:ofa`` for ``eagle:ofa`` and for ``eagle:ofa=PATH``.
    """
    name, equals, value = spec.partition("=")
    kind, colon, own = name.partition(":")
    if colon and kind in NAMED:
        if own == shipped.EVERY and not equals:
            raise ValueError(
                f"{spec} is several drafters, and vLLM runs one model beside the target; name one, as in {kind}:ofa"
            )
        return registry.parse(spec)
    if name not in ENGINE_DRAFTERS:
        if name not in OWN_DRAFTERS:
            raise ValueError(f"unknown drafter {spec!r} for serving; choose from {_choices()}")
        return registry.parse(spec)
    if (name == "ngram") == bool(value) or (equals and not value):
        raise ValueError(f"drafter {spec!r} is written {name}" + ("" if name == "ngram" else "=MODEL"))
    return name, value


def engine_kind(name: str) -> str:
    """Which drafter of vLLM's a name stands for, ``draft-model`` for ``draft:code``; empty for wager's own."""
    kind, colon, _ = name.partition(":")
    if colon:
        return NAMED.get(kind, "")
    return name if name in ENGINE_DRAFTERS else ""


def speculative_method(settings: Settings) -> tuple[str, int]:
    """What vLLM must have been configured for: its method and the number of tokens."""
    return ENGINE_DRAFTERS.get(engine_kind(settings.names[0]), "custom_class"), settings.max_length


def _choices() -> str:
    own = [registry.DRAFTERS[name].written(name) for name in OWN_DRAFTERS]
    engines = [name if name == "ngram" else f"{name}=MODEL" for name in ENGINE_DRAFTERS]
    return ", ".join([*own, *engines, *registry.SHIPPED])
