"""What an engine is told: who drafts, how long at most, and who decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from wager.core import OFF, Arm
from wager.core.require import is_whole, nearest, require
from wager.drafters import registry, shipped
from wager.policies import POLICIES, Policy, build
from wager.policies.registry import parse

KEY = "wager"  # in vLLM's additional_config
SCHEDULER, PROPOSER = "scheduler", "proposer"  # the two hooks

# Drafters that vLLM runs itself, one in an engine, and the method each is to vLLM.
ENGINE_DRAFTERS = {"ngram": "ngram", "draft-model": "draft_model", "eagle": "eagle", "eagle3": "eagle3"}
HEADS = ("eagle", "eagle3")  # of them heads; which of the two methods a folder needs, its config.json says
# Before the colon of eagle:NAME, and which of them it is.
NAMED = {"eagle": "eagle", "eagle3": "eagle3", "draft": "draft-model"}
ADOPTED = "vllm"  # before the colon of vllm:METHOD: whatever the user's own speculative_config says
# Methods of vLLM's that draft, or verify, a length of their own.
FIXED = ("custom_class", "extract_hidden_states", "medusa", "mlp_speculator", "suffix")
# What vLLM may take a model for, by its name or its config.json, where its method is called draft_model.
TAKEN_FOR = ("eagle", "eagle3", "mtp", "dflash", "dspark")
# Drafters that wager runs, any number of them side by side.
OWN_DRAFTERS = registry.servable()
MATCHING = (
    "prompt-lookup",
    "suffix",
    "retrieval",
)  # of these, those that can run on the GPU, in vLLM's V2 model runner
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
    speculator: bool = False  # matching drafters run in the model runner (wager.vllm.speculator), all as one drafter

    def __post_init__(self) -> None:
        require(1 <= self.max_length <= LONGEST, f"--max-length is 1 to {LONGEST} tokens, not {self.max_length}")
        require(self.budget >= 0, f"the token budget is 0 (none) or more, not {self.budget}")
        require(self.uniform in ("auto", "always", "never"), f"uniform is auto, always or never, not {self.uniform!r}")
        require(self.log_seconds >= 0, f"log_seconds is 0 (none) or more, not {self.log_seconds}")
        names = [name for name, _ in map(parse_drafter, self.drafters)]
        require(bool(names), f"name at least one drafter: {_choices()}")
        require(len(set(names)) == len(names), f"a drafter is named twice in {', '.join(self.drafters)}")
        engines = [name for name in names if engine_kind(name)]
        beside = set(names) - set(engines)
        alone = engines and beside and (engines[0].endswith(("ngram", "ngram_gpu")) or not beside <= set(MATCHING))
        if len(engines) > 1 or alone:
            can = f"beside a model there can be {', '.join(MATCHING)}"
            raise ValueError(f"vLLM runs drafter {engines[0]!r} itself and only one such in an engine; {can}")
        if self.budget and self.hook == SCHEDULER:
            raise ValueError(f"a token budget is for {', '.join(OWN_DRAFTERS)}; {names[0]} drafts one length for all")
        self.build_policy()

    @property
    def hook(self) -> str:
        """Which of vLLM's hooks carries it."""
        return SCHEDULER if self.speculator or any(map(engine_kind, self.names)) else PROPOSER

    @property
    def names(self) -> tuple[str, ...]:
        """The drafters' names."""
        return tuple(parse_drafter(spec)[0] for spec in self.drafters)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """The drafters a policy tells apart: all in the proposer hook.

        Under the scheduler hook one, called by the name that is first. Matching beside a model is one of its own: the
        model's arms are those in which both draft.
        """
        if self.hook != SCHEDULER:
            return self.names
        return tuple(filter(None, (self.matching, parse_drafter(self.model)[0]))) if self.matching else self.names[:1]

    @property
    def matching(self) -> str:
        """The drafter of the arms in which matching drafts alone beside a model; empty where there is no model."""
        return next((name for name in self.names if name in MATCHING), "") if self.speculator and self.model else ""

    @property
    def model(self) -> str:
        """The drafter that vLLM runs, as written; empty where there is none."""
        return next((spec for spec in self.drafters if engine_kind(parse_drafter(spec)[0])), "")

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Plain decoding, then every drafter with the lengths worth telling apart."""
        return OFF, *(Arm(name, length) for name in self.arm_names for length in self._lengths())

    def _lengths(self) -> Sequence[int]:
        every = range(1, self.max_length + 1)
        if self.uniform == "always":
            return every[-1:]
        # Each further arm has to be tried: several drafters get about three lengths each.
        if self.hook == SCHEDULER or len(self.arm_names) == 1:
            return every
        return sorted({n for n in (2, 4, 8, 16) if n < every[-1]} | {every[-1]})

    def build_policy(self, spec: str | None = None) -> Policy:
        """The policy over these arms: the chosen one, or another by its specification."""
        spec = spec or self.policy
        name, given = parse(spec)
        if name == "fixed" and not {"drafter", "length"} <= given.keys():
            raise ValueError(f"policy 'fixed' needs both, as in fixed:drafter={self.names[0]},length={self.max_length}")
        arms = self._arms_with(given) if name == "fixed" else self.arms
        if not self.budget:
            return build(spec, arms, seed=self.seed, tokens=TOKENS)
        able = [key for key, entry in POLICIES.items() if entry.make.per_request and "budget" in entry.parameters]
        require(name in able, f"policy {name!r} has no token budget; {', '.join(able)} has")
        return build(spec, self.arms, seed=self.seed, budget=self.budget)

    def _arms_with(self, given: Mapping[str, str]) -> tuple[Arm, ...]:
        """The arms, with one that is named and not among the lengths that other policies choose from."""
        drafter, length = given["drafter"], given["length"]
        if not length.isdecimal() or int(length) == 0 or "tree" in given:
            return self.arms  # `fixed` says what is wrong with it, if anything is
        wanted = f"policy 'fixed' asks for {length} tokens of {drafter}"
        if drafter not in self.arm_names:
            names = ", ".join(self.arm_names)
            raise ValueError(
                f"{wanted}, and the drafters here are {names}; choose one of them or add it with --drafter"
            )
        if int(length) > self.max_length:
            longest = f"the maximum length is {self.max_length}"
            raise ValueError(f"{wanted}, and {longest}; choose 1 to {self.max_length} or raise it with --max-length")
        if self.uniform == "always" and int(length) != self.max_length:
            both = f"--uniform always drafts {self.max_length}"
            raise ValueError(f"{wanted}, and {both}; choose that length, or set it with --max-length {length}")
        arm = Arm(drafter, int(length))
        return self.arms if arm in self.arms else (*self.arms, arm)

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
            instead = f"pass what wager.vllm.engine_args gives, additional_config={{{KEY!r}: …}} included"
            missing = "vLLM was started with wager's hook but without its settings"
            raise ValueError(f"{missing}; start it with `wager serve`, or {instead}")
        unknown = sorted(set(given) - {f.name for f in fields(cls)})
        require(not unknown, f"additional_config[{KEY!r}] has no setting {', '.join(unknown)}")
        return cls(**{**given, "drafters": tuple(given.get("drafters", ()))})


def parse_drafter(spec: str) -> tuple[str, str]:
    """The name and the value of a drafter for serving, both checked; whether a shipped one is there is not.

    The name is the arms': ``eagle:ofa`` for ``eagle:ofa`` and for ``eagle:ofa=PATH``.
    """
    name, equals, value = spec.partition("=")
    kind, colon, own = name.partition(":")
    if kind == ADOPTED and own and not equals:
        return name, ""
    if colon and kind in NAMED:
        if own == shipped.EVERY and not equals:
            one = f"vLLM runs one model beside the target; name one, as in {kind}:ofa"
            raise ValueError(f"{spec} is several drafters, and {one}")
        return registry.parse(spec)
    if name in OWN_DRAFTERS:
        return registry.parse(spec)
    if name not in ENGINE_DRAFTERS:
        near = nearest(name, (*OWN_DRAFTERS, *ENGINE_DRAFTERS))
        raise ValueError(f"unknown drafter {spec!r} for serving{near}; choose from {_choices()}")
    if (name == "ngram") == bool(value) or (equals and not value):
        raise ValueError(f"drafter {spec!r} is written {name}" + ("" if name == "ngram" else "=MODEL"))
    return name, value


def engine_kind(name: str) -> str:
    """Which drafter of vLLM's a name stands for, ``draft-model`` for ``draft:code``; empty for wager's own."""
    kind, colon, _ = name.partition(":")
    if colon:
        return kind if kind == ADOPTED else NAMED.get(kind, "")
    return name if name in ENGINE_DRAFTERS else ""


def adopt(settings: Settings, config: Mapping[str, Any]) -> Settings:
    """The settings for a speculative configuration of the user's own, whose length adapts and which stays as it is.

    Matching drafters that were named stand beside it. ValueError in one sentence where its length cannot adapt.
    """
    method, length = config.get("method"), config.get("num_speculative_tokens")
    if not isinstance(method, str) or not isinstance(length, int) or not is_whole(length):
        needs = "its method and num_speculative_tokens, which is then the maximum length"
        raise ValueError(f"a speculative_config of your own names {needs}")
    method = "mtp" if method.endswith("_mtp") else method  # as vLLM calls it: names of single models are older ones
    if method in FIXED:
        raise ValueError(f"vLLM's method {method!r} has a draft length of its own, which wager cannot change")
    if config.get("enable_adaptive_verification"):
        raise ValueError("enable_adaptive_verification and wager both decide how much is verified; leave one out")
    if settings.max_length not in (MAX_LENGTH, length):
        both = f"the maximum length is {settings.max_length} and num_speculative_tokens is {length}"
        raise ValueError(f"{both}; leave one out")
    beside = () if settings.drafters == DRAFTERS else settings.drafters
    if not {parse_drafter(spec)[0] for spec in beside} <= set(MATCHING):
        both = f"method in speculative_config says who drafts, and so does the drafter {', '.join(beside)}"
        raise ValueError(f"{both}; leave one out")
    return replace(settings, drafters=(*beside, f"{ADOPTED}:{method}"), max_length=length, speculator=bool(beside))


def engine_settings(config: Any) -> Settings:
    """The settings of an engine with this VllmConfig; one started without wager's has its own speculation adapt."""
    speculative, additional = config.speculative_config, config.additional_config
    if speculative is None or (isinstance(additional, Mapping) and KEY in additional):
        return Settings.of(additional)
    said = {"method": speculative.method, "num_speculative_tokens": speculative.num_speculative_tokens}
    return adopt(Settings(), said)


def speculative_methods(settings: Settings) -> tuple[str, ...]:
    """The methods of vLLM's that these drafters can be run by.

    There is one for n-grams on the CPU and one on a GPU, and one for EAGLE heads and one for those of EAGLE-3. Of a
    configuration of the user's own vLLM itself tells whether a draft model is a head.
    """
    if not settings.model:
        return ("ngram_gpu" if settings.speculator else "custom_class",)
    name = parse_drafter(settings.model)[0]
    kind = engine_kind(name)
    method = name.partition(":")[2] if kind == ADOPTED else ENGINE_DRAFTERS[kind]
    if kind in HEADS:
        return HEADS
    if kind == ADOPTED and method == "draft_model":
        return method, *TAKEN_FOR
    return ("ngram", "ngram_gpu") if method == "ngram" else (method,)


def _choices() -> str:
    own = [registry.DRAFTERS[name].written(name) for name in OWN_DRAFTERS]
    engines = [name if name == "ngram" else f"{name}=MODEL" for name in ENGINE_DRAFTERS]
    return ", ".join([*own, *engines, *registry.SHIPPED])
