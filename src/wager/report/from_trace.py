"""A trace: rounds as they came, of one policy, without texts."""

from __future__ import annotations

from pathlib import Path

from wager.core import trace as traces
from wager.core.round import Round
from wager.report.from_run import drafted_pairs, verify_cost
from wager.report.views import Big, Choice, Cost, Drafted, Material, Source


def traced(path: Path) -> Material:
    """All figures of a trace; one that is still being written is read as far as it goes."""
    meta = traces.read_meta(path)
    said: dict[str, str] = {
        key: meta[key] if isinstance(meta.get(key), str) else "" for key in ("command", "date", "machine")
    }
    if isinstance(meta.get("device"), str):
        said["machine"] = f"{meta['device']}; {said['machine']}"
    source = Source(path.name, "a trace", said["command"], said["date"], said["machine"])
    made = Material(source)
    rounds: list[Round] = []
    marks: list[tuple[int, str]] = []
    requests = 0
    for record in traces.read(path):
        if isinstance(record, Round):
            rounds.append(record)
            continue
        requests += 1
        if record.label and (not marks or marks[-1][1] != record.label):
            marks.append((len(rounds), record.label))
    who = str(meta.get("policy") or "the policy")
    if not rounds:
        made.verdict = [f"{path.name} holds no round yet."]
        return made
    tokens, seconds = sum(r.emitted for r in rounds), sum(r.seconds for r in rounds)
    batches = [r.batch for r in rounds]
    several = max(batches) > 1
    made.choices.append(
        Choice(source, who, [str(r.arm) for r in rounds], marks if len(marks) <= 16 else (), batches if several else ())
    )
    alone = [r for r in rounds if r.batch == 1]
    pairs = drafted_pairs((str(r.arm), r.drafted, r.accepted) for r in alone)
    if pairs:
        made.drafted.append(Drafted(source, pairs))
    cost = verify_cost([(r.drafted + 1, r.verify_seconds) for r in alone])
    if cost:
        how = "Median seconds of the target's verification, by its width; a width in 5 rounds or more."
        made.costs.append(Cost(source, {"wager": cost}, "quartiles", how))
    big = [
        Big(f"{tokens:,}", "tokens", f"{requests:,} request{'s' * (requests != 1)}"),
        Big(f"{len(rounds):,}", "rounds"),
    ]
    big.append(Big(f"{tokens / sum(batches):.2f}", "tokens a round", "MAT, bonus included"))
    if seconds > 0:
        big.append(Big(f"{tokens / seconds:.1f}", "tokens a second", "decoding alone"))
    made.figures = big
    drafted, accepted = sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)
    taken = f", and {accepted / drafted:.0%} of the drafted tokens were taken" if drafted else ""
    made.verdict = [f"{who} wrote {tokens:,} tokens in {len(rounds):,} rounds{taken}."]
    return made
