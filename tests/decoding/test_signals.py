"""What policies and traces are shown of a decoder's rounds."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from decoders import PROMPT, Told, alike, check, informed, ours, plain, tiny

import wager
from wager.core import OFF, Arm, Context, Request, Round, Signal, TraceWriter
from wager.core import trace as traces
from wager.drafters.cards import read_card
from wager.drafters.draft_model import DraftModel
from wager.drafters.kinds import made_of
from wager.drafters.prompt_lookup import PromptLookup
from wager.policies import Policy


class Watching(Policy):
    """Every arm in turn, and everything it was shown."""

    needs = frozenset(Signal)

    def __init__(self, arms: Sequence[Arm]) -> None:
        super().__init__(arms)
        self.contexts: list[Context] = []
        self.rounds: list[Round] = []

    def choose(self, context: Context) -> Arm:
        self.contexts.append(context)
        return context.arms[len(self.contexts) % len(context.arms)]

    def observe(self, round: Round) -> None:
        self.rounds.append(round)


def test_a_policy_of_ones_own_sees_contexts_and_rounds() -> None:
    model = tiny()
    arms = informed(model).arms
    policy = Watching(arms)
    decoder = informed(model, policy=policy)
    check(model, PROMPT, ours(decoder), plain(model))
    contexts, rounds = policy.contexts, policy.rounds
    assert len(contexts) == len(rounds) > 5
    assert [context.prompt is not None for context in contexts] == [True] + [False] * (len(contexts) - 1)
    assert contexts[0].prompt.length == len(PROMPT)
    with torch.no_grad():
        ids = torch.tensor([PROMPT])
        loss = model(input_ids=ids, labels=ids).loss
    assert contexts[0].prompt.perplexity == pytest.approx(float(loss.exp()), rel=1e-3)
    assert contexts[0].previous is None
    assert [c.previous for c in contexts[1:]] == [r.arm for r in rounds[:-1]]
    assert all(c.arms is contexts[0].arms and c.arms[0] == OFF for c in contexts)
    tokens = 1
    for context, played in zip(contexts, rounds, strict=True):
        assert context.tokens == tokens
        tokens += played.emitted
        assert set(context.hints) <= {"told", "prompt-lookup", "suffix"}


def test_the_first_context_of_a_text_says_what_kinds_its_prompt_may_be() -> None:
    """Where a drafter's card tells kinds apart, and a policy asks."""
    model, shares = tiny(), {"low": [0.5], "high": [0.6]}
    notes = {
        "acceptance": shares,
        "kinds": made_of({"low": [PROMPT], "high": [[token + 1 for token in PROMPT]]}).notes(),
    }
    for needs in (frozenset(Signal), frozenset(Signal) - {Signal.KINDS}):
        drafter = DraftModel(alike(model), "draft")
        drafter.card = read_card(notes)
        policy = Watching((OFF, Arm("draft", 2)))
        policy.needs = needs  # type: ignore[misc]
        decoder = wager.Decoder(model, drafters=[drafter], arms=policy.arms, policy=policy)
        for _ in range(2):
            policy.contexts.clear()
            decoder.generate(PROMPT, max_new_tokens=12)
            first, *others = policy.contexts
            assert others
            assert not any(context.kinds for context in others)
            assert (first.kinds.get("low", 0.0) > 0.5) == (Signal.KINDS in needs)


def test_a_draft_models_lag_is_what_it_has_not_read() -> None:
    class Late(Watching):
        def choose(self, context: Context) -> Arm:
            super().choose(context)
            return next(a for a in context.arms if a.length == (4 if len(self.contexts) in (6, 7) else 0))

    model, policy = tiny(), Late((OFF, Arm("draft-model", 4)))
    decoder = wager.Decoder(model, drafters=[DraftModel(tiny())], policy=policy, lengths=(4,))
    ours(decoder)
    lags = [context.lag["draft-model"] for context in policy.contexts]
    # all but the newest token of prompt and text; then, its draft kept whole, the draft's own last token is missing
    assert lags[:7] == [*range(len(PROMPT), len(PROMPT) + 6), 1]
    assert [r.lag for r in policy.rounds[:8]] == [0, 0, 0, 0, 0, len(PROMPT) + 5, 1, 0]
    assert [r.accepted for r in policy.rounds[5:7]] == [4, 4]
    assert policy.rounds[6].lag_seconds == 0


def test_a_trace_holds_everything_and_reads_back(tmp_path: Path) -> None:
    model = tiny()
    path = tmp_path / "trace.jsonl"
    whole = [[*PROMPT, *plain(model)]]
    with TraceWriter(path, {"model": "tiny"}) as writer:
        drafters = [Told(whole), PromptLookup(), DraftModel(alike(model))]
        decoder = wager.Decoder(model, drafters=drafters, policy="round-robin", trace=writer)
        answers = [
            decoder.generate(PROMPT, max_new_tokens=60, do_sample=sample, label=label)
            for sample, label in ((False, "greedy"), (True, "sampled"))
        ]
    check(model, PROMPT, answers[0].tokens, plain(model))
    records = list(traces.read(path))
    assert traces.read_meta(path) == {"model": "tiny"}
    starts = [i for i, record in enumerate(records) if isinstance(record, Request)]
    assert starts == [0, len(answers[0].rounds) + 1]
    assert [records[i].label for i in starts] == ["greedy", "sampled"]  # type: ignore[union-attr]
    assert all(records[i].prompt is not None for i in starts)  # type: ignore[union-attr]
    rounds = [record for record in records if isinstance(record, Round)]
    assert rounds == [r for answer in answers for r in answer.rounds]
    for played in rounds:
        assert len(played.overlap) == played.drafted
        assert played.repeated is not None
        own = played.others.get(played.arm.drafter, ())  # at tokens that the model missed before it drafted
        assert isinstance(own, tuple)
        assert own == () or played.arm.drafter == "draft-model"
    # what others would have got is right: the one who knows the text is asked in every round but the last few
    knowing = [r for r in answers[0].rounds if r.arm == OFF]
    assert {r.others["told"] for r in knowing} <= {0, 1}
    assert any(r.others["told"] for r in knowing)
    text, seen = list(PROMPT), []
    at = 1
    for played in answers[0].rounds:
        new = answers[0].tokens[at : at + played.emitted]
        known = {*text, *answers[0].tokens[:at]}
        seen.append(sum((t in known) or known.add(t) or False for t in new))
        at += played.emitted
    assert [r.repeated for r in answers[0].rounds] == seen


def test_memory_is_kept_unless_told_to_forget() -> None:
    model = tiny()
    for forget in (False, True):
        decoder = wager.Decoder(model, drafters="suffix", policy="round-robin", reset_per_request=forget)
        decoder.generate(PROMPT, max_new_tokens=3)
        first = decoder.generate(PROMPT, max_new_tokens=3).rounds[0].arm
        assert first == decoder.arms[0 if forget else 2]
