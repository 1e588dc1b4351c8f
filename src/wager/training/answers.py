"""Self-distillation: the target answers the prompts, and its answers are what drafters learn from.

The work is cut into parts, each a file of its own written in one go: what a kill leaves behind is whole, and the next
run goes on with the parts that are missing. Several processes can share the parts between them.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from zipfile import BadZipFile
from zlib import crc32

import numpy as np

from wager.core import files
from wager.training.config import Answers
from wager.training.prompts import Prompt

NEEDED = ("tokens", "lengths", "prompts", "domains", "keys", "temperature")  # what a part's file must hold


@dataclass(frozen=True, slots=True)
class Part:
    """Prompts answered together."""

    name: str
    temperature: float
    prompts: tuple[tuple[Prompt, tuple[int, ...]], ...]  # with their tokens


Engine = Callable[[Part, int], list[list[int]]]  # prompt and answer, of so many tokens at most, of each prompt


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer to it."""

    tokens: np.ndarray  # (length,)
    prompt: int  # tokens of the prompt
    domain: str
    temperature: float
    key: int  # of the prompt
    target: str = ""  # whose answer it is; empty: it was not noted


def parts(prompts: Sequence[Prompt], tokenizer: Any, answers: Answers, *, seed: int = 0) -> list[Part]:
    """The whole work: at every temperature its share of the prompts, prompts of like length together."""
    chats = [list(p.messages) for p in prompts]
    tokens = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    known = [(p, tuple(ids)) for p, ids in zip(prompts, tokens, strict=True) if len(ids) <= answers.longest_prompt]
    if not known:
        longer = f"all prompts are longer than {answers.longest_prompt} tokens"
        raise ValueError(f"{longer}; raise longest_prompt of the plan, or --longest-prompt")
    made: list[Part] = []
    for temperature, share in zip(answers.temperatures, answers.share, strict=True):
        dice = random.Random(f"{seed} {temperature}")
        chosen = sorted((pair for pair in known if dice.random() < share), key=lambda pair: len(pair[1]))
        for at in range(0, len(chosen), answers.batch):
            name = f"t{temperature:g}-{at // answers.batch:04d}"
            made.append(Part(name, temperature, tuple(chosen[at : at + answers.batch])))
    random.Random(seed).shuffle(made)  # so that every process has its share of the long ones
    return made


def answer(engine: Engine, work: Sequence[Part], folder: Path, max_tokens: int, *, target: str = "",
           shard: tuple[int, int] = (0, 1), minutes: float = math.inf,
           done: Callable[[int, float], None] = lambda *_: None) -> int:  # fmt: skip
    """Answer every part of this shard that is not in the folder yet; ``done`` gets the tokens and seconds of each.

    No part is begun after so many minutes; the number of parts that are left. Parts that are there must hold answers of
    this ``target`` to the same prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started, left = perf_counter(), 0
    for part in work[shard[0] :: shard[1]]:
        path = folder / f"{part.name}.npz"
        fresh, began = 0, perf_counter()
        if path.exists():
            _check(path, part, target, max_tokens)
        else:
            if began - started >= 60 * minutes:
                left += 1
                continue
            texts = engine(part, max_tokens)
            _save(path, part, texts, target, max_tokens)
            fresh = sum(len(t) for t in texts) - sum(len(ids) for _, ids in part.prompts)
        done(fresh, perf_counter() - began if fresh else 0.0)
    return left


def transformers_engine(model: Any) -> Engine:
    """Answers by the model's own ``generate``, a part at a time."""
    return partial(_answered, model)


def _answered(model: Any, part: Part, max_tokens: int) -> list[list[int]]:
    """Prompt and answer of each prompt, the end-of-text token included where there is one."""
    import torch
    from transformers import GenerationConfig

    ends = model.generation_config.eos_token_id
    stops = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    pad = next(iter(stops), 0)  # a model without an end of text answers as long as it may
    longest = max(len(ids) for _, ids in part.prompts)
    ids = torch.full((len(part.prompts), longest), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (_, tokens) in enumerate(part.prompts):
        ids[row, longest - len(tokens) :] = torch.tensor(tokens)
        mask[row, longest - len(tokens) :] = 1
    how: dict[str, Any] = {"do_sample": False}
    if part.temperature:
        how = {"do_sample": True, "temperature": part.temperature, "top_k": 0, "top_p": 1.0}
    torch.manual_seed(crc32(part.name.encode()))
    # By the target's distribution alone, which drafters learn and are judged by: without penalties or filters that its
    # own settings may have.
    own, model.generation_config = model.generation_config, GenerationConfig(eos_token_id=ends)
    try:
        with torch.inference_mode():
            ids, mask = ids.to(model.device), mask.to(model.device)
            out = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, pad_token_id=pad, **how)
    finally:
        model.generation_config = own
    texts = []
    for (_, tokens), row in zip(part.prompts, out[:, longest:].tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        texts.append([*tokens, *row[:end]])
    return texts


def _save(path: Path, part: Part, texts: Sequence[Sequence[int]], target: str, max_tokens: int) -> None:
    """Write a part's texts, whole or not at all."""
    with files.replacing(path) as file:
        np.savez(
            file,
            tokens=np.concatenate([np.asarray(t, dtype=np.int32) for t in texts]),
            lengths=np.array([len(t) for t in texts], dtype=np.int32),
            prompts=np.array([len(ids) for _, ids in part.prompts], dtype=np.int32),
            domains=np.array([p.domain for p, _ in part.prompts]),
            keys=np.array([p.key for p, _ in part.prompts], dtype=np.uint64),
            temperature=np.array(part.temperature),
            target=np.array(target),
            max_tokens=np.array(max_tokens),
        )


def _check(path: Path, part: Part, target: str, max_tokens: int) -> None:
    """Refuse a part that is there and holds other answers than are asked for."""
    held = _read(path)
    starts = held["lengths"].cumsum() - held["lengths"]
    prompts = [tuple(held["tokens"][at : at + n].tolist()) for at, n in zip(starts, held["prompts"], strict=True)]
    theirs, most = str(held.get("target", "")), int(held.get("max_tokens", max_tokens))
    other = ""
    if prompts != [ids for _, ids in part.prompts] or held["keys"].tolist() != [p.key for p, _ in part.prompts]:
        other = "answers to other prompts"
    elif theirs and target and theirs != target:
        other = f"answers of {theirs}, not of {target}"
    elif most != max_tokens:
        other = f"answers of up to {most} tokens, not {max_tokens}"
    if other:
        raise ValueError(f"{path} holds {other}; give another folder with --answers, or delete the old answers")


def _read(path: Path) -> dict[str, Any]:
    try:
        with np.load(path) as part:
            held = {name: part[name] for name in part.files}
        return held | {name: held[name] for name in NEEDED}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        raise ValueError(f"{path} holds no answers of this version; delete it and answer again") from None


def texts(folder: Path, target: str = "") -> Iterator[Text]:
    """Every text of the folder, in the order of the parts' names; those of another target are refused."""
    found = sorted(folder.glob("*.npz"))
    if not found:
        raise ValueError(f"no answers in {folder}; make them first with `wager train answers`")
    for path in found:
        held = _read(path)
        theirs, temperature = str(held.get("target", "")), float(held["temperature"])
        if theirs and target and theirs != target:
            raise ValueError(f"{path} holds answers of {theirs}, not of {target}; name the folder of its own answers")
        tokens, lengths = held["tokens"], held["lengths"]
        meta = (held["prompts"], held["domains"], held["keys"])
        ends = lengths.cumsum()
        for end, length, prompt, domain, key in zip(ends, lengths, *meta, strict=True):
            yield Text(tokens[end - length : end], int(prompt), str(domain), temperature, int(key), theirs)
