"""A slow, obvious reference of the suffix tree: it counts every n-gram of every text as soon as a token is written."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from wager.core import Tree
from wager.drafters.token_tree import NOTHING, Continuation, grow

Ngram = tuple[int, ...]


class EagerTree:
    """Counts of all n-grams of up to ``depth`` tokens, and the order of the tokens that follow each."""

    def __init__(self, depth: int, length: int, factor: float, least: float) -> None:
        self.depth, self.length, self.factor, self.least = depth, length, factor, least
        self.counts: Counter[Ngram] = Counter()
        self.after: defaultdict[Ngram, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))

    def extend(self, text: list[int], tokens: Sequence[int]) -> None:
        for token in tokens:
            text.append(token)
            for size in range(1, min(self.depth, len(text)) + 1):
                *ngram, _ = text[-size:]
                count = self.counts[*ngram, token]
                self.counts[*ngram, token] += 1
                groups = self.after[tuple(ngram)]
                was_first = groups[count][:1] == [token]
                if count:
                    groups[count].remove(token)
                # in front where it was the first of its own count
                groups[count + 1].insert(0 if was_first else len(groups[count + 1]), token)

    def remove(self, text: list[int]) -> None:
        for start in range(len(text)):
            for end in range(start + 1, min(start + self.depth, len(text)) + 1):
                *ngram, token = text[start:end]
                count = self.counts[*ngram, token]
                self.counts[*ngram, token] -= 1
                groups = self.after[tuple(ngram)]
                groups[count].remove(token)
                if count > 1:
                    groups[count - 1].insert(0, token)

    def likeliest(self, ngram: Ngram) -> list[int]:
        groups = self.after[ngram]
        return [token for count in sorted(groups, reverse=True) for token in groups[count]]

    def matches(self, text: Sequence[int], context: Sequence[int]) -> list[tuple[Ngram, int]]:
        """The n-grams that end the context and occur elsewhere than at the end of the text, and the limit of each."""
        found = []
        for match in range(1, len(context)):
            ngram = tuple(context[-match:])
            if self.counts[ngram] > (match <= len(text)):
                found.append((ngram, min(self.length, int(match * self.factor + 1e-6), self.depth - match)))
        return found

    def best(self, text: Sequence[int], context: Sequence[int], above: float) -> Continuation:
        best = NOTHING
        for ngram, most in self.matches(text, context):
            tokens: Ngram = ()
            counts: list[int] = []
            while len(tokens) < most and (following := self.likeliest(ngram + tokens)):
                count = self.counts[*ngram, *tokens, following[0]]
                if count / self.counts[ngram] < self.least:
                    break
                tokens += (following[0],)
                counts.append(count)
            score = sum(counts) / self.counts[ngram]
            if score >= best.score and score > above:
                best = Continuation(list(tokens), [n / self.counts[ngram] for n in counts], score, len(ngram))
        return best

    def tree(self, text: Sequence[int], context: Sequence[int], shape: Tree) -> Continuation:
        best = NOTHING
        for ngram, most in sorted(self.matches(text, context), key=lambda one: (-one[1], -len(one[0]))):
            if (most, len(ngram)) > (best.score, best.match):  # else it could be better by rounding alone
                tree = grow(ngram, self._children, most, shape, self.least * (1 - 1e-9), len(ngram))
                best = max(best, tree, key=lambda one: (one.score, one.match))
        return best

    def _children(self, ngram: Ngram, most: int) -> list[tuple[int, float, Ngram]]:
        return [
            (token, self.counts[*ngram, token] / self.counts[ngram], (*ngram, token))
            for token in self.likeliest(ngram)[:most]
        ]
