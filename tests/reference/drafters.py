"""Slow, obvious references of the drafters: every one looks through the whole text, or all documents, each time."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

Proposal = tuple[list[int], int, list[float]]  # tokens, match, confidence


def occurrences(piece: Sequence[int], text: Sequence[int]) -> list[int]:
    """Positions after each occurrence of a piece, in order."""
    n = len(piece)
    return [i + n for i in range(len(text) - n + 1) if list(text[i : i + n]) == list(piece)]


def prompt_lookup(text: Sequence[int], length: int, longest: int, shortest: int, cap: int) -> Proposal:
    """Copy, token by token, from after the latest earlier occurrence of the longest n-gram that has one."""
    for size in range(longest, shortest - 1, -1):
        earlier = [end for end in occurrences(text[len(text) - size :], text) if end < len(text)]
        if len(text) < size or not earlier:
            continue
        known, read = list(text), earlier[-1]
        for _ in range(length):
            known.append(known[read])
            read += 1
        match = size
        while match < min(cap, earlier[-1]) and text[earlier[-1] - 1 - match] == text[-1 - match]:
            match += 1
        sure = [_share_of_pairs(text, known[at - 1], known[at]) for at in range(len(text), len(known))]
        return known[len(text) :], match, sure
    return [], 0, []


def _share_of_pairs(text: Sequence[int], before: int, token: int) -> float:
    """How often the text has the token after the one before it, over one more than the times that one is followed."""
    following = [text[at + 1] for at in range(len(text) - 1) if text[at] == before]
    return following.count(token) / (len(following) + 1)


def suffix(
    text: Sequence[int], outputs: Sequence[Sequence[int]] | None, length: int, depth: int, factor: float, least: float
) -> Proposal:
    """The best-scored path over all matches in the text, or in the outputs if that is better.

    Scores are exact. Among equally frequent next tokens there is no rule here: a draft is any of the best ones, which
    is why only drafts without such a tie can be compared.
    """
    own = _best_path(text[-depth:], [text], length, depth, factor, least)
    past = _best_path(text[-depth:], outputs, length, depth, factor, least) if outputs is not None else None
    _, match, tokens, survival = own if past is None or own[0] >= past[0] else past
    ratios = [b / a for a, b in zip([1.0, *survival], survival, strict=False)]
    return (tokens, match, ratios) if tokens else ([], 0, [])


class TieError(Exception):
    """Two tokens follow equally often."""


def _best_path(
    context: Sequence[int], texts: Sequence[Sequence[int]], length: int, depth: int, factor: float, least: float
) -> tuple[Fraction, int, list[int], list[float]]:
    def count(piece: Sequence[int]) -> int:
        return sum(len(occurrences(piece, text)) for text in texts)

    best: tuple[Fraction, int, list[int], list[float]] = (Fraction(0), 0, [], [])
    for match in range(1, len(context)):
        piece = list(context[-match:])
        if count(piece) == 0:
            break
        most = min(length, int(match * factor + 1e-6))
        alive, score = Fraction(1), Fraction(0)
        tokens: list[int] = []
        survival: list[float] = []
        while len(tokens) < most and len(piece) < depth:
            after = Counter(text[end] for text in texts for end in occurrences(piece, text) if end < len(text))
            if not after:
                break
            (token, times), *others = after.most_common()
            alive *= Fraction(times, count(piece))
            if float(alive) < least:
                break
            if others and others[0][1] == times:
                raise TieError
            piece.append(token)
            tokens.append(token)
            survival.append(float(alive))
            score += alive
        if score >= best[0]:
            best = (score, match, tokens, survival)
    return best


def retrieval(
    text: Sequence[int], documents: Sequence[Sequence[int]], length: int, shortest: int, cap: int
) -> Proposal:
    """The longest match that goes on anywhere; from there always the most frequent token, of equals the lowest."""
    for match in range(min(cap, len(text)), shortest - 1, -1):
        piece = list(text[-match:])
        going = [list(d[end:]) for d in documents for end in occurrences(piece, d)]
        tokens: list[int] = []
        shares: list[float] = []
        while len(tokens) < length:
            after = Counter(rest[len(tokens)] for rest in going if len(rest) > len(tokens))
            if not after:
                break
            most = max(after.values())
            token = min(token for token, times in after.items() if times == most)
            shares.append(most / len(going))
            going = [rest for rest in going if rest[len(tokens) : len(tokens) + 1] == [token]]
            tokens.append(token)
        if tokens:
            return tokens, match, shares
    return [], 0, []
