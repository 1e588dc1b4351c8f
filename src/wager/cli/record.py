"""`wager lab record`: what every drafter would have had accepted at every position of texts, for replay."""

import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console

from wager.bench.workloads import ALL, PARTS, Prompt, prompts, read_file
from wager.cli.files import check_new
from wager.cli.options import Drafters, Options, Target
from wager.cli.parameters import argument, opt, option, options
from wager.cli.screen import bar, stage
from wager.cli.session import quietly
from wager.cli.suite import fitted, model_name
from wager.core import Arm, Tree
from wager.core.provenance import provenance
from wager.drafters import registry
from wager.policies.base import require

COUNT = 4  # prompts a task
WRITES = 4  # tokens the drafter drafts that only helps to write


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts to answer: of the benchmark tasks, or of a file."""

    PANEL: ClassVar = "Prompts"

    file: Annotated[Path | None, argument("JSON lines, or a prompt a line.", "PROMPTS_FILE", "benchmark tasks")] = None
    data: Path | None = opt(None, "Folder with prompts/.", shown="WAGER_DATA")
    task: list[str] | None = opt(None, f"One of {', '.join(ALL)}; repeat it.", shown="all ten")
    count: int | None = opt(None, "Prompts a task or of the file.", "--prompts", min=1, shown=f"{COUNT}, or the file")
    part: str | None = opt(None, f"Of the tasks' prompts: {', '.join(PARTS)}.", shown="all")
    seed: int = opt(0, "For the choice and order of prompts.", min=0)

    def __post_init__(self) -> None:
        if self.file is not None and (self.data is not None or self.task or self.part is not None):
            raise ValueError("--data, --task and --part choose among the benchmark tasks; leave them out with a file")

    def read(self) -> list[Prompt]:
        """The prompts in the order of the seed."""
        if self.file is None:
            tasks, count = self.task or ALL, self.count or COUNT
            chosen = prompts(self.data, tasks=tasks, count=count, seed=self.seed, part=self.part or "all")
        else:
            chosen = read_file(self.file)
        random.Random(self.seed).shuffle(chosen)
        return chosen if self.file is None else chosen[: self.count]


def tree_shapes(text: str) -> list[tuple[int, Tree]]:
    """Depths and shapes of the trees that --trees names."""
    found = []
    for each in filter(None, text.split(",")):
        depth, _, shape = each.partition("@")
        require(depth.isdecimal() and bool(shape), f"--trees takes DEPTH@BREADTHxNODES, such as 4@4x16, not {each!r}")
        arm = Arm("tree", int(depth), Tree.parse(shape))  # checks that the two fit each other
        found.append((arm.length, Tree.parse(shape)))
    return found


@options
def command(
    given: Prompts,
    *,
    out: Annotated[Path, option("The recording to write; .gz compresses it.", "--out", show_default=False)],
    target: Target,
    drafters: Drafters = "suffix,prompt-lookup",
    longest: Annotated[int, option("Tokens every drafter proposes.", min=1)] = 8,
    max_tokens: Annotated[int, option("Tokens per answer.", min=2)] = 128,
    longest_prompt: Annotated[int, option("Longer prompts are cut.", min=16)] = 1024,
    trees: Annotated[str, option("Trees of heads, DEPTH@BREADTHxNODES, such as 4@4x16,6@8x32.", shown="none")] = "",
    detail: Annotated[str, option("Drafters whose trees and confidence are recorded.", shown="all")] = "",
    batch: Annotated[int, option("Texts written at once, by plain decoding; 1: with a cheap drafter.", min=1)] = 1,
    timed: Annotated[bool, option("Time rounds first; not on a busy machine.", "--timed/--untimed")] = True,
    temperature: Annotated[float, option("Above 0 texts are sampled.", "--temperature", "-t", min=0.0)] = 0.0,
) -> None:
    """Record what each drafter would have had accepted at every position of texts that a model writes."""
    check_new(out, "recording")
    choices = Options(**asdict(target), policy="off", drafters=drafters, max_tokens=max_tokens, seed=given.seed)
    require(bool(choices.specs), "a recording needs at least one drafter besides off")
    shaped = tree_shapes(trees)
    chosen = given.read()
    from wager.bench.engine import described
    from wager.bench.recording import record
    from wager.decoding.arms import build_drafters
    from wager.decoding.decoder import Decoder
    from wager.decoding.recorder import Recorder

    console = Console(stderr=True)
    with quietly(target.model):
        with stage(f"loading {target.model} …", console):
            model, tokenizer = target.load(progress=console.print)
            asks = build_drafters(choices.specs, model, tokenizer)
            # The first cheap drafter writes the text.
            writes = next((s for s, d in zip(choices.specs, asks.values(), strict=True) if d.cheap), None)
            length = min(WRITES, longest)
            policy = f"fixed:drafter={registry.parse(writes)[0]},length={length}" if writes else "off"
            decoder = Decoder(model, tokenizer, drafters=writes or "off", policy=policy, lengths=(length, longest))
        recorder = Recorder(decoder, asks, longest, shaped, detail.split(",") if detail else None)
        own = "tasks" if given.file is None else given.file.name
        about: dict[str, Any] = {"model": model_name(target.model), "drafters": list(recorder.drafters)}
        about |= {"longest": longest, "max_tokens": max_tokens, "temperature": temperature, "prompts": own}
        about["part"] = None if given.file is not None else given.part or "all"
        cut = fitted(chosen, target.model, model, tokenizer, max_tokens, longest_prompt)
        asked = [(one.prompt, one.ids[0].tolist()) for one in cut]
        with bar("timing forwards", len(asked)) as update:
            whole = {**provenance(), **described(model), **about}
            how: dict[str, Any] = {"temperature": temperature, "seed": given.seed, "batch": batch, "timed": timed}
            texts = list(record(recorder, asked, max_tokens, whole, out, update, **how))
    require(bool(texts), f"nothing to record: every one of {len(chosen)} answers ended with its first token")
    print(f"{out}: {len(texts):,} texts, {sum(text.tokens for text in texts):,} tokens")
    for name in recorder.drafters:
        agreed = statistics.fmean(n for text in texts for n in text.tracks[name].agreed)
        size = statistics.fmean(n for text in texts for n in text.tracks[name].size)
        print(f"  {name}: {agreed:.2f} of {size:.2f} proposed tokens agreed with the text, on average over positions")
