"""The token view: a text with every token in the colour of the drafter that brought it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from wager.report.colours import Palette
from wager.report.scales import plural
from wager.report.templating import macro
from wager.report.views import Figure, Key, Source, Table, TextRound, Value

HOW = "Point at a token, tap it, or walk with the arrow keys: its round, its arm and the drafts that were rejected."
OWN = {"bonus": "bonus: the target's own, after a draft", "plain": "plain: a round without a draft"}


def token_view(texts: Mapping[str, Sequence[TextRound]], palette: Palette, source: Source) -> Figure:
    """Texts of one file by their titles, the first open."""
    every = [played for rounds in texts.values() for played in rounds]
    counts: Counter[str] = Counter(who for _, tokens, _ in every for _, who in tokens)
    brought = [who for who in counts if who not in OWN]
    total = sum(counts.values())
    share = sum(counts[who] for who in brought) / total if total else 0.0
    says = f"{share:.0%} of {plural(total, 'token')} came from a drafter. {HOW}"
    shares = [(who, Value(n, f"{n:,}"), Value(n / total, f"{n / total:.1%}")) for who, n in counts.most_common()]
    legend = [Key(who, palette.drafter(who)) for who in brought]
    own = [who for who in OWN if who in counts]
    legend += [Key(OWN[who], palette.drafter(who), "2 4", line=who == "bonus", hollow=who == "plain") for who in own]
    shown = [_one(title, rounds, palette) for title, rounds in texts.items()]
    html = macro("tokens.html", "view", shown, any(rejected for *_, rejected in every))
    table = Table(["source", "tokens", "share"], [(OWN.get(who, who), *values) for who, *values in shares])
    return Figure("tokens", "Where every token came from", says, source, table, html=html, legend=legend)


def _one(title: str, rounds: Sequence[TextRound], palette: Palette) -> dict[str, Any]:
    lost = sum(len(rejected) for *_, rejected in rounds)
    count = len(rounds) - (rounds[0][0] == "off") if rounds else 0  # the first: the prompt's forward
    said = f"{plural(sum(len(tokens) for _, tokens, _ in rounds), 'token')} in {plural(count, 'round')}"
    said += f", {plural(lost, 'drafted token')} rejected" if lost else ""
    shown: list[dict[str, Any]] = []
    for i, (arm, tokens, rejected) in enumerate(rounds):
        told = _told(i, arm, tokens, "".join(rejected))
        left = [{"rejected": "".join(rejected).replace("\n", "↵")}] if rejected else []
        for piece, who in tokens:
            if who in OWN:  # where the draft went on otherwise
                shown += left
                left = []
            about = {"kind": f"t {who}" if who in OWN else "t", "colour": palette.drafter(who), "round": i}
            told_of = f"{_quoted(piece)}: {OWN.get(who, who)}\n{told}"
            shown.append({"rejected": "", "piece": piece, "told": told_of, **about})
        shown += left
    return {"title": title, "said": said, "tokens": shown}


def _told(i: int, arm: str, tokens: Sequence[tuple[str, str]], rejected: str) -> str:
    """What a token's round was."""
    if i == 0 and arm == "off":
        return "from the prompt's own forward"
    taken = sum(who not in OWN for _, who in tokens)
    lines = [f"round {i}, {arm}" + (f": {taken} accepted" if arm != "off" else "")]
    if rejected:
        lines.append(f"rejected: {_quoted(rejected)}")
    elif arm != "off" and not taken:
        lines.append("nothing was drafted")
    return "\n".join(lines)


def _quoted(piece: str) -> str:
    return "“" + piece.replace("\n", "↵") + "”" if piece else "no text of its own"
