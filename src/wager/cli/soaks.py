"""`wager bench identity` and `wager bench memory`: many requests of the real model, and what must hold over them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from wager.bench.workloads import TASKS, prompts
from wager.cli.engines import JsonFile
from wager.cli.files import check_writable, write_json
from wager.cli.options import MODEL, Device, Dtype, Model

if TYPE_CHECKING:
    from wager.drafters import Drafter

# One of every family, and arms changed at random in every round.
FAMILIES = ("random", "round-robin", "ucbspec", "exp3spec", "meta-ucb", "discounted-ucb", "petc:tokens=2000",
            "analytical", "fsm:drafter=suffix", "cached-fsm:drafter=suffix", "qlearning", "prompt-router", "nightjar",
            "dsd", "tetris:drafter=suffix", "linucb", "thompson:reward=goodput", "off")  # fmt: skip


def identity(
    model: Model = MODEL,
    dtype: Dtype = "auto",
    device: Device = "auto",
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    count: Annotated[int, typer.Option("--prompts", min=1, help="Prompts a task, of eight tasks.")] = 8,
    tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens an answer.")] = 64,
    longest: Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts are cut.")] = 768,
    datastore: Annotated[Path | None, typer.Option(help="Also the retrieval drafter, over this datastore.")] = None,
    every: Annotated[bool, typer.Option("--every", help="Every policy on every prompt, not two in turn.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Compare wager's greedy texts with plain decoding's: all drafters, every policy family, arms changed at random.

    Ends with exit code 1 if a text differs where the model's logits do not tie.
    """
    if json_file is not None:
        check_writable(json_file)
    chosen = prompts(data, tasks=TASKS, count=count)
    from wager.bench.draft_models import truncated
    from wager.bench.engine import described
    from wager.bench.soak import check_texts
    from wager.drafters.draft_model import DraftModel
    from wager.drafters.prompt_lookup import PromptLookup
    from wager.drafters.retrieval import Retrieval
    from wager.drafters.suffix import Suffix
    from wager.models import load

    target, tokenizer = load(model, dtype=dtype, device=device)
    drafters: list[Drafter] = [Suffix(), PromptLookup(), DraftModel(truncated(target, 4))]
    if datastore is not None:
        drafters.append(Retrieval(datastore))
    asked = [prompt.ids(tokenizer, longest, target.device) for prompt in chosen]
    texts = check_texts(target, drafters, FAMILIES, asked, tokens, every=every)
    total = len(asked) * (len(FAMILIES) if every else 3)
    records = list(track(texts, total=total, description="comparing", console=Console(stderr=True), transient=True))
    differing = [r for r in records if not r["same"]]
    broken = [r for r in differing if not r["tie"]]
    used = Counter(name for r in records for name in r["drafters"])
    largest = max((r["gap"] for r in differing if r["gap"] is not None), default=0.0)
    print(f"{len(asked)} prompts, {len(records)} texts, {sum(r['tokens'] for r in records):,} tokens: "
          f"{len(records) - len(differing)} identical, {len(differing) - len(broken)} ties "
          f"(largest gap {largest:.2g} standard deviations), {len(broken)} differ")  # fmt: skip
    print("drafted by: " + ", ".join(f"{name} in {times} texts" for name, times in used.most_common()))
    if json_file is not None:
        said = {"model": model, **described(target), "prompts": len(asked), "max_tokens": tokens, "texts": len(records)}
        same, ties = len(records) - len(differing), len(differing) - len(broken)
        found = {"identical": same, "ties": ties, "differ": len(broken)}
        more = {"largest_gap": largest, "drafters": dict(used), "differing": differing}
        write_json(json_file, {**said, **found, **more})
    if broken:
        raise typer.Exit(1)


def memory(
    model: Model = MODEL,
    dtype: Dtype = "auto",
    device: Device = "auto",
    requests: Annotated[int, typer.Option(min=20, help="Requests, one after the other.")] = 200,
    json_file: JsonFile = None,
) -> None:
    """Watch the process's memory over many requests, some of which fill the model's context."""
    if json_file is not None:
        check_writable(json_file)
    from wager.bench.engine import described
    from wager.bench.soak import memory_over
    from wager.decoding.decoder import Decoder
    from wager.models import load

    target, tokenizer = load(model, dtype=dtype, device=device)
    decoder = Decoder(target, tokenizer, drafters="suffix,prompt-lookup", policy="random")
    steps = track(
        memory_over(decoder, requests), total=requests, description="generating", console=Console(stderr=True),
        transient=True,
    )  # fmt: skip
    held = list(steps)
    marks = {number: held[number - 1] for number in (1, 20, requests // 2, requests)}
    growth = held[-1] / held[19] - 1
    print("resident memory: " + ", ".join(f"{size / 2**20:,.0f} MiB after {n}" for n, size in marks.items()))
    print(f"growth from request 20 to {requests}: {growth:+.1%}")
    if json_file is not None:
        content: dict[str, Any] = {"model": model, **described(target), "requests": requests, "growth_after_20": growth}
        write_json(json_file, {**content, "mebibytes": [round(size / 2**20, 1) for size in held]})
