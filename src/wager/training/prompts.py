"""Prompts for the target to answer, made of corpora: instructions, code, questions, translations, long documents."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from wager.core.require import require
from wager.training.config import Plan, Source

Message = dict[str, str]
Records = Sequence[Mapping[str, Any]]
Made = Iterator[str | list[Message]]  # what the user says, or a conversation
LIMIT = 4000  # characters of a passage
NAME = re.compile(r"(?<=[a-z,] )(?:[A-Z][a-z]+(?: of| the| [A-Z][a-z]+)+|[A-Z][a-z]{4,})")
SUMMARIZE = ("Summarize: {}", "Summarize this text in a few sentences.\n\n{}", "{}\n\nSummarize the above.")
ASKED = (
    "Who is {}?", "What is {}?", "What is {} known for?", "When was {} founded or born?", "Where is {}?",
    "Tell me about {}.", "Why is {} important?", "What happened to {}?", "How did {} begin?",
    "Explain {} to a student in a few sentences.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation that the target is to continue."""

    domain: str
    messages: tuple[Message, ...]

    @property
    def key(self) -> int:
        """The same for the same words, on every machine: says whether its answers are held out."""
        return int.from_bytes(sha256(json.dumps(self.messages).encode()).digest()[:8], "big")


def read(plan: Plan, data: Path, *, seed: int = 0) -> list[Prompt]:
    """Every prompt of the plan, each once, in the order of the domains."""
    found: dict[int, Prompt] = {}
    for domain, sources in plan.domains.items():
        for source in sources:
            dice = random.Random(f"{seed} {domain} {source.file} {source.kind}")
            for messages in _made(source, data, dice)[: source.take]:
                prompt = Prompt(domain, tuple(messages))
                found.setdefault(prompt.key, prompt)
    require(bool(found), "the plan's files hold no record that a prompt is made of; name others")
    return list(found.values())


def _made(source: Source, data: Path, dice: random.Random) -> list[list[Message]]:
    if source.kind not in RECIPES:
        raise ValueError(f"unknown kind of prompts {source.kind!r}; choose from {', '.join(RECIPES)}")
    fields, make = RECIPES[source.kind]
    path = data / source.file
    try:
        # splitlines would cut texts at U+2028 too
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        records = [json.loads(line) if path.suffix == ".jsonl" else {"text": line} for line in lines]
        made = [one if isinstance(one, list) else [_says("user", one)] for one in make(records, source, dice)]
        if not all(isinstance(message["content"], str) for messages in made for message in messages):
            raise TypeError
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; pass --data with the folder it lies in") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(f"{path} should hold one JSON record a line with {fields}") from None
    dice.shuffle(made)
    return made


def _says(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _instructions(records: Records, source: Source, dice: random.Random) -> Made:
    for r in records:
        yield "\n\n".join(filter(None, (r["instruction"], r.get("input", ""))))


def _fix(records: Records, source: Source, dice: random.Random) -> Made:
    """Code with a line missing, to be put right."""
    for r, lines in _code(records):
        gone = dice.randrange(1, len(lines) - 1)
        code = "\n".join(lines[:gone] + lines[gone + 1 :])
        ask = dice.choice(("Find the bug and write the corrected code.", "Fix this code.", "Why does this fail?"))
        yield f"{r['instruction']}\n\nMy attempt does not work:\n\n{code}\n\n{ask}"


def _complete(records: Records, source: Source, dice: random.Random) -> Made:
    """The first lines of some code, to be gone on with."""
    for _, lines in _code(records):
        shown = "\n".join(lines[: dice.randrange(1, max(2, len(lines) // 2))])
        yield f"Write the rest of this code, and show all of it.\n\n{shown}"


def _code(records: Records) -> Iterator[tuple[Mapping[str, Any], list[str]]]:
    """Records whose response has more than four lines, with these."""
    return ((r, lines) for r in records if len(lines := r["response"].splitlines()) > 4)


def _questions(records: Records, source: Source, dice: random.Random) -> Made:
    return (r["question"] for r in records)


def _translate(records: Records, source: Source, dice: random.Random) -> Made:
    """One sentence, or a few of them, into English."""
    texts = [r["source"] for r in records]
    at = 0
    while at < len(texts):
        count = dice.choice((1, 1, 2, 3, 4))
        yield f"Translate {source.language} to English: {' '.join(texts[at : at + count])}"
        at += count


def _dialogue(records: Records, source: Source, dice: random.Random) -> Made:
    """A conversation up to one of the user's turns."""
    for r in records:
        turns = r["turns"]
        last = dice.choice([i for i, (who, _) in enumerate(turns) if who == "USER"])
        yield [_says("user" if who == "USER" else "assistant", said) for who, said in turns[: last + 1]]


def _passages(records: Records, dice: random.Random) -> Iterator[str]:
    """Pieces of the texts, whole sentences, of very different lengths; overlapping ones where there is much text."""
    for r in records:
        if "turns" in r:
            yield "\n".join(f"{'Customer' if who == 'USER' else 'Agent'}: {said}" for who, said in r["turns"])
            continue
        text = r.get("text") or r["response"]
        if len(text) < 1500:
            yield text
            continue
        sentences = re.split(r"(?<=[.!?])\s*(?=[A-Z])", text)
        at = 0
        while at < len(sentences):
            wanted = dice.randrange(400, LIMIT)
            end, size = at, 0
            while end < len(sentences) and size < wanted:
                size += len(sentences[end]) + 1
                end += 1
            yield " ".join(sentences[at:end])
            at += max(1, (end - at) // 3)


def _summarize(records: Records, source: Source, dice: random.Random) -> Made:
    return (dice.choice(SUMMARIZE).format(text) for text in _passages(records, dice))


def _ask(records: Records, source: Source, dice: random.Random) -> Made:
    """Short questions about what the texts name."""
    names = sorted({name for r in records for name in NAME.findall(r["text"])})
    return (ask.format(name) for name in names for ask in dice.sample(ASKED, 2))


def _rag(records: Records, source: Source, dice: random.Random) -> Made:
    """Passages, and questions about what they name."""
    for text in _passages(records, dice):
        names = NAME.findall(text)
        for name in dice.sample(names, min(3, len(names))):
            yield f"{text}\n{dice.choice(ASKED).format(name)}"


RECIPES: dict[str, tuple[str, Callable[[Records, Source, random.Random], Made]]] = {
    "instructions": ("instruction and input", _instructions),
    "fix": ("instruction and response", _fix),
    "complete": ("response", _complete),
    "questions": ("question", _questions),
    "translate": ("source", _translate),
    "dialogue": ("turns", _dialogue),
    "summarize": ("text, response or turns", _summarize),
    "ask": ("text", _ask),
    "rag": ("text", _rag),
}
