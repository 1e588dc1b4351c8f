"""What a drafter is worth on greedy answers it has not seen: acceptance per position, and tokens a round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wager.training import answers
from wager.training.answers import Text
from wager.training.batches import once, split
from wager.training.config import Answers
from wager.training.features import Known, known
from wager.training.learners import Learner, mixed
from wager.training.prompts import Prompt

LENGTHS = (1, 2, 3, 4, 5, 6)  # of drafts
BATCH_TOKENS = 16384
HELD_OUT = "{} (held out)"  # a domain as a task
HOMES = {  # tasks that are of a domain's kind
    "code": ("humaneval", "debug_bench"),
    "math": ("math_reasoning",),
    "translation": ("translation",),
    "summarization": ("summarization", "xsum"),
    "chat": ("mt_bench", "qa", "alpaca"),
}

Rows = dict[str, dict[str, dict[str, Any]]]  # drafter -> task -> figures


@dataclass(slots=True)
class Judged:
    """Drafts of one length over many greedy texts, each text walked round by round as decoding would."""

    length: int
    rounds: int = 0
    tokens: int = 0
    reached: list[int] = field(default_factory=list)  # rounds whose draft was right up to each position

    def add(self, accepted: Sequence[int]) -> None:
        """One text, by what a draft from each of its tokens would have had accepted; -1: nothing to draft there."""
        self.reached = self.reached or [0] * self.length
        at = next((i for i, count in enumerate(accepted) if count >= 0), len(accepted))
        while at < len(accepted) and accepted[at] >= 0:
            count = min(accepted[at], self.length)
            self.rounds += 1
            self.tokens += count + 1
            for position in range(count):
                self.reached[position] += 1
            at += count + 1

    @property
    def mat(self) -> float:
        """Mean tokens a round, the target's own included."""
        return self.tokens / max(1, self.rounds)

    @property
    def acceptance(self) -> list[float]:
        """Per position: of the drafts that came so far, the share that is right there too."""
        return [r / b if b else 0.0 for r, b in zip(self.reached, [self.rounds, *self.reached], strict=False)]


def judge(
    learner: Learner, texts: Sequence[Text], tokens: int, lengths: Sequence[int], features: Known = lambda _: None
) -> list[Judged]:
    """The drafter on these greedy texts, once for every length; ``features`` where they are known."""
    found = [Judged(length) for length in lengths]
    for batch in once(texts, tokens):
        with mixed(learner.target.device):
            rows = learner.accepted(batch, features(batch)).tolist()
        for row in rows:
            for one in found:
                one.add(row)
    return found


def greedy_answers(model: Any, tokenizer: Any, prompts: Sequence[Prompt], tokens: int, longest: int,
                   kept: Path | None, done: Callable[[int], None], target: str = "") -> list[Text]:  # fmt: skip
    """The target's greedy answers, kept in a folder or taken from it; ``done`` gets the number of parts after each."""
    how = Answers((0.0,), (1.0,), tokens, longest, 256 if model.device.type == "cuda" else 1)
    work = answers.parts(prompts, tokenizer, how)
    left = {prompt.domain for part in work for prompt, _ in part.prompts}
    if gone := next((prompt.domain for prompt in prompts if prompt.domain not in left), None):
        longer = f"every prompt of {gone} is longer than {longest} tokens"
        raise ValueError(f"{longer}; leave it out, or raise --longest-prompt")
    with TemporaryDirectory() as spare:
        folder = kept or Path(spare)
        engine = answers.transformers_engine(model)
        answers.answer(engine, work, folder, tokens, target=target, done=lambda *_: done(len(work)))
        wanted = {prompt.key for part in work for prompt, _ in part.prompts}
        found = {text.key: text for text in answers.texts(folder, target) if text.key in wanted}
    if found.keys() != wanted:
        raise ValueError(f"{folder} holds answers to other prompts; give another folder with --answers")
    return list(found.values())


def held_out(texts: Iterable[Text]) -> list[Text]:
    """Of the answers that drafters were trained on those that were held out, their domains as tasks."""
    return [replace(text, domain=HELD_OUT.format(text.domain)) for text in split(list(texts))[1]]


def judge_by_task(drafters: Mapping[str, Learner], texts: Sequence[Text], tasks: Sequence[str],
                  done: Callable[[str, str], None]) -> Rows:  # fmt: skip
    """Tokens a round and acceptance of every drafter, all of one target, on every task."""
    rows: Rows = {name: {} for name in drafters}
    for task in tasks:
        own = [text for text in texts if text.domain == task]
        features = known([(learner, own) for learner in drafters.values()])
        for (name, learner), read in zip(drafters.items(), features, strict=True):
            found = judge(learner, own, BATCH_TOKENS, LENGTHS, read)
            rows[name][task] = {
                "texts": len(own),
                "mat": {str(j.length): round(j.mat, 4) for j in found},
                "acceptance": [round(share, 4) for share in found[-1].acceptance],
                "rounds": {str(j.length): j.rounds for j in found},
                "tokens": {str(j.length): j.tokens for j in found},
            }
            done(name, task)
    return rows


def mat_over(rows: Rows, tasks: Sequence[str], length: str = "4") -> dict[str, float]:
    """Every drafter's tokens a round over all of these tasks, with drafts of this length."""

    def total(row: Mapping[str, Any], what: str) -> int:
        return sum(row[task][what][length] for task in tasks)

    return {name: round(total(row, "tokens") / max(1, total(row, "rounds")), 4) for name, row in rows.items()}


def at_home(rows: Rows, domains: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Every specialist, which is a drafter of one domain, beside the others of its kind on the tasks of its domain.

    ``gain`` is how much more it has than the best of the other specialists.
    """
    tasks = set().union(*(row.keys() for row in rows.values()))
    found: list[dict[str, Any]] = []
    for name, own in domains.items():
        if len(own) != 1:
            continue
        domain = own[0]
        kind = {each: rows[each] for each in rows if each.split("-")[0] == name.split("-")[0]}
        rivals = [each for each in kind if len(domains[each]) == 1 and tuple(domains[each]) != (domain,)]
        for on in ((HELD_OUT.format(domain),), HOMES.get(domain, ())):
            if rivals and on and tasks.issuperset(on):
                mats = mat_over(kind, on)
                mat = mats.pop(name)
                gain = round(mat / max(mats[each] for each in rivals) - 1, 4)
                found.append({"drafter": name, "on": ", ".join(on), "mat": mat, "gain": gain, "others": mats})
    return found
