"""A run of methods over prompts: interleaved, every answer kept at once, and resumed after a kill."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Self

from wager.bench.garbage import freeze_answers, loaded_objects_frozen
from wager.bench.methods import Method, TextGenerator
from wager.bench.run_folder import RunFolder
from wager.bench.summary import Answer, summarize
from wager.bench.workloads import Prompt
from wager.core import Arm, Round, Signal

SHOWN = 12  # answers of a run whose tokens are kept one by one, for the report
Key = tuple[str, str]  # a prompt's id, a method's name


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt with its tokens and an id of its own."""

    id: str
    prompt: Prompt
    ids: Any  # a tensor, (1, length)

    def json(self) -> dict[str, Any]:
        """As in the run's file: what tells another text from this one, and nothing of the text."""
        digest = sha256(str(self.ids[0].tolist()).encode()).hexdigest()[:12]
        return {"id": self.id, "task": self.prompt.task, "tokens": self.ids.shape[1], "digest": digest}


def tokenize(prompts: Sequence[Prompt], tokenizer: Any, longest: int, device: Any) -> list[TokenizedPrompt]:
    """The prompts with their tokens, each numbered within its task."""
    counts: dict[str, count[int]] = defaultdict(count)
    return [
        TokenizedPrompt(f"{prompt.task}-{next(counts[prompt.task])}", prompt, prompt.ids(tokenizer, longest, device))
        for prompt in prompts
    ]


def interleaved(
    generators: Sequence[TextGenerator], prompts: Iterable[TokenizedPrompt], *, seed: int = 0
) -> Iterator[tuple[TokenizedPrompt, TextGenerator]]:
    """Every prompt with every generator, in an order drawn anew for each prompt."""
    order = random.Random(seed)
    for prompt in prompts:
        for generator in order.sample(list(generators), len(generators)):
            yield prompt, generator


class Run:
    """Methods over prompts, and their answers; as a context manager it keeps other processes out of its folder.

    With a folder every answer is kept there and a run that was stopped is resumed; without one it is in memory only.
    """

    def __init__(
        self, methods: Sequence[Method], prompts: Sequence[TokenizedPrompt], arms: Sequence[str],
        folder: Path | None = None, *, afresh: bool = False, **settings: Any,
    ) -> None:  # fmt: skip
        """``arms`` are all that a round can play. A run that is in the folder must have the same settings."""
        self.prompts = prompts
        told = [{"name": method.name, "kind": method.kind} for method in methods]
        asked = [prompt.json() for prompt in prompts]
        self.head: dict[str, Any] = {"seed": 0, **settings, "methods": told, "prompts": asked, "arms": list(arms)}
        self.answers: dict[Key, Answer] = {}  # in the order they were given
        self.complete = False
        self._arms = [Arm.parse(arm) for arm in arms]
        self._names = [method.name for method in methods]
        self._policies = [method.name for method in methods if method.kind == "policy"]
        self.folder = None if folder is None else RunFolder(folder, self.head, afresh=afresh)
        if self.folder is not None:
            try:
                self._resume(self.folder)
            except BaseException:
                self.folder.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.close()

    def _resume(self, folder: RunFolder) -> None:
        if folder.there is None:
            self.save()
            return
        self.head |= {key: folder.there[key] for key in ("command", "date") if key in folder.there}
        self.complete = bool(folder.there["complete"])
        prompts = {prompt.id for prompt in self.prompts}

        def take(record: Mapping[str, Any]) -> None:
            if record["prompt"] not in prompts or record["method"] not in self._names:
                raise ValueError
            self._take((record["prompt"], record["method"]), record)

        folder.read_answers(take)

    def play(
        self, generators: Sequence[TextGenerator], tokenizer: Any = None, warming: Callable[[str], object] = str
    ) -> Iterator[tuple[TokenizedPrompt, str]]:
        """Answer what is not answered yet, every prompt with every generator in turn; yields after each answer."""
        # ``warming`` gets the name of each generator before it is warmed up. With a ``tokenizer`` the tokens of some
        # answers are kept one by one.
        tokens = self.head["max_tokens"]
        shown = self._shown() if tokenizer is not None else set()
        for generator in generators:
            warming(generator.name)
            generator.warm_up(self.prompts[0].ids.device, tokens)
            if not any(name == generator.name for _, name in self.answers):  # else its state is restored
                generator.practise([prompt.ids for prompt in self.prompts], tokens)
            if generator.decoder is not None:
                self._restore(generator)
        with loaded_objects_frozen():
            for prompt, generator in interleaved(generators, self.prompts, seed=self.head["seed"]):
                key = prompt.id, generator.name
                if key in self.answers:
                    continue
                answer = generator.run(prompt.ids, tokens)
                learned = self.folder is not None and generator.decoder is not None and generator.name in self._policies
                state = generator.decoder.policy.state_dict() if learned else None  # type: ignore[union-attr]
                pieces = generator.latest.pieces(tokenizer) if generator.latest is not None and key in shown else None
                self.add(key, answer, pieces=pieces, state=state)
                freeze_answers()
                yield prompt, generator.name

    def _shown(self) -> set[Key]:
        """Whose tokens are kept: the first policy's answer to one prompt of each task, then the next policy's."""
        first = {prompt.prompt.task: prompt.id for prompt in reversed(self.prompts)}
        return set([(at, name) for name in self._policies for at in reversed(first.values())][:SHOWN])

    def _restore(self, generator: TextGenerator) -> None:
        """Bring a generator to where it was: load its policy's state, let its drafters read its earlier texts."""
        decoder = generator.decoder
        assert decoder is not None
        asked = {prompt.id: prompt.ids[0].tolist() for prompt in self.prompts}
        for (at, name), answer in self.answers.items():
            if name == generator.name:
                if Signal.PROMPT in decoder.policy.needs:
                    decoder.prompts.features(asked[at], 1.0)
                for drafter in decoder.drafters.values():
                    drafter.begin(asked[at])
                    drafter.extend(answer.tokens)
                    drafter.end()
        given = self.given(generator.name)
        if self.folder is not None and generator.name in self._policies and given:
            decoder.policy.load_state_dict(self.folder.state(generator.name, given))

    def add(
        self, key: Key, answer: Answer, *, pieces: list[Any] | None = None, state: dict[str, Any] | None = None
    ) -> None:
        """Keep an answer; ``state`` is what its policy knows now."""
        if self.folder is None:
            self.answers[key] = answer
            return
        record = {**self._json(key, answer), "ids": answer.tokens, **({} if pieces is None else {"pieces": pieces})}
        if state is not None:  # before the answer: whichever answers are there, the state after them is there, too
            self.folder.keep_state(key[1], self.given(key[1]) + 1, state)
        self.folder.append(record)
        self._take(key, record)

    def given(self, method: str) -> int:
        """How many answers of a method there are."""
        return sum(name == method for _, name in self.answers)

    def _take(self, key: Key, record: Mapping[str, Any]) -> None:
        if key in self.answers:  # it counts once
            return
        rounds = [
            Round(self._arm(arm), drafted, accepted, emitted, draft_seconds=drafting, verify_seconds=verifying)
            for arm, drafted, accepted, emitted, drafting, verifying in record["rounds"]
        ]
        seconds, prefill = record["seconds"], record["prefill_seconds"]
        own = max(0.0, seconds - prefill - sum(r.seconds for r in rounds)) if rounds else 0.0
        came = record["ids"], seconds, record["forwards"]
        self.answers[key] = Answer(*came, rounds, own, prefill, record.get("pieces"))

    def _arm(self, told: int | str) -> Arm:
        """By its place among the arms, or as it is written, where something was merged into its draft."""
        return self._arms[told] if isinstance(told, int) else Arm.parse(told)

    def summary(self, model: Any = None) -> dict[str, Any]:
        """The figures of all answers so far; with a ``model``, whose texts are greedy, also where texts differ."""
        found = summarize(self.head["methods"], self.head["prompts"], self.answers, seed=self.head["seed"])
        if model is not None:
            found["differences"] = self.differences(self._names[0], self._names[1:], model)
        return found

    def differences(self, base: str, others: Sequence[str], model: Any = None) -> dict[str, Any]:
        """How many texts of other methods are not those of ``base``; only prompts that all have answered count."""
        # With a ``model``, whose texts are greedy, ``unexplained`` counts differences where its logits do not tie, and
        # ``largest_gap`` is the largest distance of the two tokens' logits, in standard deviations of the logits.
        known = self.answers
        whole = [prompt for prompt in self.prompts if all((prompt.id, name) in known for name in (base, *others))]
        pairs = [(p, known[p.id, name].tokens, known[p.id, base].tokens) for name in others for p in whole]
        found = {"answers": len(pairs), "texts": sum(ours != theirs for _, ours, theirs in pairs)}
        if model is None:
            return found
        from wager.decoding.identity import difference

        told = [difference(model, p.ids[0].tolist(), ours, theirs) for p, ours, theirs in pairs if ours != theirs]
        gaps = [each.gap for each in told if each is not None and each.gap is not None]
        unexplained = sum(each is not None and not each.tie for each in told)
        return {**found, "unexplained": unexplained, "largest_gap": round(max(gaps, default=0.0), 6)}

    def save(
        self, summary: Mapping[str, Any] | None = None, verdict: Sequence[str] = (), *, complete: bool = False
    ) -> Path:
        """Write ``run.json`` with all answers so far; a complete run needs no state any more."""
        assert self.folder is not None
        self.complete = complete
        answers = [self._told(key) for key in self.answers]
        content = {"complete": complete, "answers": answers, "summary": dict(summary or {}), "verdict": list(verdict)}
        return self.folder.write({**self.head, **content})

    def _told(self, key: Key) -> dict[str, Any]:
        told = self._json(key, self.answers[key])
        plain = self.answers.get((key[0], self._names[0]))
        told["same"] = None if plain is None else plain.tokens == self.answers[key].tokens
        return told | ({"pieces": pieces} if (pieces := self.answers[key].pieces) is not None else {})

    def _json(self, key: Key, answer: Answer) -> dict[str, Any]:
        seconds = {"seconds": round(answer.seconds, 6), "prefill_seconds": round(answer.prefill_seconds, 6)}
        about = {"prompt": key[0], "method": key[1], "tokens": len(answer.tokens), **seconds}
        rounds = []
        for r in answer.rounds:
            drafting, verifying = round(r.draft_seconds + r.lag_seconds, 6), round(r.verify_seconds, 6)
            arm = self._arms.index(r.arm) if r.arm.merged is None else str(r.arm)
            rounds.append([arm, r.drafted, r.accepted, r.emitted, drafting, verifying])
        return {**about, "forwards": answer.forwards, "rounds": rounds}
