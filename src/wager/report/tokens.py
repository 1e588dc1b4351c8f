"""The token view: a text with every token in the colour of the drafter that brought it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from wager.report.colours import Palette
from wager.report.scales import plural
from wager.report.templating import macro
from wager.report.views import Figure, Key, Source, Table, Text, TextRound, Value

HOW = "Point at a token, tap it, or walk with the arrow keys: its round, its arm and the drafts that were rejected."
OWN = {"bonus": "bonus: the target's own, after a draft", "plain": "plain: a round without a draft"}


def token_view(texts: Sequence[Text], palette: Palette, source: Source) -> Figure:
    """Texts of one file, the first open."""
    counts: Counter[str] = Counter(who for text in texts for r in text.rounds for _, who in r.tokens)
    brought = [who for who in counts if who not in OWN]
    total = sum(counts.values())
    share = sum(counts[who] for who in brought) / total if total else 0.0
    says = f"{share:.0%} of {plural(total, 'token')} came from a drafter. {HOW}"
    any_rejected = any(r.rejected for text in texts for r in text.rounds)
    shares = [(who, Value(n, f"{n:,}"), Value(n / total, f"{n / total:.1%}")) for who, n in counts.most_common()]
    legend = [Key(who, palette.drafter(who)) for who in brought]
    own = [who for who in OWN if who in counts]
    legend += [Key(OWN[who], palette.drafter(who), "2 4", line=who == "bonus", hollow=who == "plain") for who in own]
    html = macro("tokens.html", "view", [_one(text, palette) for text in texts], any_rejected)
    table = Table(["source", "tokens", "share"], [(OWN.get(who, who), *values) for who, *values in shares])
    return Figure("tokens", "Where every token came from", says, source, table, html=html, legend=legend)


def _one(text: Text, palette: Palette) -> dict[str, Any]:
    count = sum(len(r.tokens) for r in text.rounds)
    lost = sum(len(r.rejected) for r in text.rounds)
    rounds = len(text.rounds) - (text.rounds[0].arm == "off") if text.rounds else 0  # the first: the prompt's forward
    said = f"{plural(count, 'token')} in {plural(rounds, 'round')}"
    said += f", {plural(lost, 'drafted token')} rejected" if lost else ""
    tokens: list[dict[str, Any]] = []
    for i, played in enumerate(text.rounds):
        told = _told(i, played)
        rejected = [{"rejected": "".join(played.rejected).replace("\n", "↵")}] if played.rejected else []
        for piece, who in played.tokens:
            if who in OWN:  # where the draft went on otherwise
                tokens += rejected
                rejected = []
            about = {"kind": f"t {who}" if who in OWN else "t", "colour": palette.drafter(who), "round": i}
            told_of = f"{_quoted(piece)}: {OWN.get(who, who)}\n{told}"
            tokens.append({"rejected": "", "piece": piece, "told": told_of, **about})
        tokens += rejected
    return {"title": text.title, "said": said, "tokens": tokens}


def _told(i: int, played: TextRound) -> str:
    """What a token's round was."""
    if i == 0 and played.arm == "off":
        return "from the prompt's own forward"
    taken = sum(who not in OWN for _, who in played.tokens)
    lines = [f"round {i}, {played.arm}" + (f": {taken} accepted" if played.arm != "off" else "")]
    if played.rejected:
        lines.append(f"rejected: {_quoted(''.join(played.rejected))}")
    elif played.arm != "off" and not taken:
        lines.append("nothing was drafted")
    return "\n".join(lines)


def _quoted(piece: str) -> str:
    return "“" + piece.replace("\n", "↵") + "”" if piece else "no text of its own"
