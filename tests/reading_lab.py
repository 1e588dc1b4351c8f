"""Simulated texts with several heads, of which idle ones may read."""

from dataclasses import replace

from wager.core import Context, Round
from wager.policies import build
from wager.simulation import Drafter, Stream, play
from wager.simulation.stream import VerifyCost

VERIFY = VerifyCost(((1, 0.03), (5, 0.035)))
TAKING_TURNS = (Drafter("x", (0.8, 0.3), 0.002), Drafter("y", (0.3, 0.8), 0.002))
CHANGING = Stream(TAKING_TURNS, (4,), 4000, off=True, verify=VERIFY, lag_seconds=5e-5, phase_tokens=1000)


def heads(*acceptance: float, step: float = 0.002, lag: float = 5e-5, tokens: int = 400) -> Stream:
    drafters = tuple(Drafter(f"d{i}", (rate,), step) for i, rate in enumerate(acceptance))
    return Stream(drafters, (4,), tokens, off=True, verify=VERIFY, lag_seconds=lag)


def played(scenario: Stream, spec: str, seeds: int, after: int = 0) -> list[Round]:
    """The rounds of all runs from this token on."""
    rounds: list[Round] = []

    def watch(context: Context, outcome: Round) -> None:
        if context.tokens >= after:
            rounds.append(outcome)

    for seed in range(seeds):
        play(scenario, spec, seed, watch=watch)
    return rounds


def played_late(scenario: Stream, seeds: int, after: int = 0) -> list[Round]:
    """The same by `auto` where every round is observed after the next choice, as on a GPU."""
    rounds: list[Round] = []
    for seed in range(seeds):
        policy, waiting = build("auto", scenario.arms, seed=seed), list[Round]()
        environment = scenario.start(seed, policy)
        while not environment.done:
            context = replace(environment.context(), unobserved=bool(waiting))
            arm = policy.choose(context)
            if waiting:
                policy.observe(waiting.pop())
            waiting.append(environment.play(arm))
            rounds += waiting if context.tokens >= after else []
    return rounds


def tokens_a_round(rounds: list[Round]) -> float:
    return sum(one.emitted for one in rounds) / len(rounds)
