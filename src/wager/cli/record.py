"""`wager record`: what every drafter would have had accepted at every position of texts, for replay."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wager.bench.workloads import ALL, PARTS, Prompt, prompts, read_file
from wager.cli.files import check_writable, provenance
from wager.cli.options import MODEL, Device, Drafters, Dtype, Model, Options
from wager.core.recording import RecordingWriter, Text
from wager.drafters import registry

if TYPE_CHECKING:
    from wager.decoding.recorder import Recorder
    from wager.models.runner import Runner

COUNT = 4  # prompts a task
CONTEXT, REPEATS = 300, 10  # tokens in the cache and repetitions when forwards are timed
CAUGHT_UP = 64  # tokens a drafter reads at once when its catching up is timed
WRITES = 4  # tokens the drafter drafts that only helps to write

_PROMPTS = "Prompts"


def command(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="PROMPTS_FILE",
            help='JSON lines (.jsonl, .json) with "prompt" and perhaps "task", or text with one prompt a line.',
            show_default="the benchmark tasks",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="The recording to write; .gz compresses it.", show_default=False)],
    model: Model = MODEL,
    drafters: Drafters = "suffix,prompt-lookup",
    dtype: Dtype = "auto",
    device: Device = "auto",
    longest: Annotated[int, typer.Option(min=1, help="Tokens every drafter is asked for.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens an answer.")] = 128,
    longest_prompt: Annotated[int, typer.Option(min=16, help="Longer prompts are cut.")] = 1024,
    data: Annotated[
        Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA", rich_help_panel=_PROMPTS)
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(ALL)}; repeat it.", show_default="all ten", rich_help_panel=_PROMPTS),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--prompts",
            min=1,
            help="Prompts a task, or of the file.",
            show_default=f"{COUNT}, or the whole file",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help=f"Of the tasks' prompts: {', '.join(PARTS)}.", show_default="all", rich_help_panel=_PROMPTS),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="For the choice and order of prompts.", rich_help_panel=_PROMPTS)
    ] = 0,
) -> None:
    """Write texts with a model and record what each drafter would have had accepted at every position."""
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} exists; a recording is never overwritten")
    check_writable(out)
    options = Options(
        model=model, policy="off", drafters=drafters, dtype=dtype, device=device, max_tokens=max_tokens, seed=seed
    )
    if not options.specs:
        raise ValueError("a recording needs at least one drafter besides off")
    if file is None:
        chosen = prompts(data, tasks=task or ALL, count=count or COUNT, seed=seed, part=part or "all")
    elif data is not None or task or part is not None:
        raise ValueError("--data, --task and --part choose among the benchmark tasks; leave them out with a file")
    else:
        chosen = read_file(file)
    random.Random(seed).shuffle(chosen)
    if file is not None:
        chosen = chosen[:count]

    from wager.cli.session import quietly

    with quietly():
        recorder = _recorder(options, longest)
        held = recorder.decoder.target.limit
        if held < 16 + max_tokens:
            raise ValueError(f"{model} holds {held:,} tokens: too few for answers of {max_tokens:,} and a prompt")
        about = {
            **provenance(),
            **_described(recorder, options),
            "longest": longest,
            "max_tokens": max_tokens,
            "prompts": "tasks" if file is None else file.name,
            "part": None if file is not None else part or "all",
        }
        cut = min(longest_prompt, held - max_tokens)
        texts = list(
            _record(
                recorder,
                [(p, p.ids(recorder.decoder.tokenizer, cut, "cpu")[0].tolist()) for p in chosen],
                max_tokens,
                about,
                out,
            )
        )
    if not texts:
        raise ValueError(f"nothing to record: every one of {len(chosen)} answers ended with its first token")
    print(f"{out}: {len(texts):,} texts, {sum(text.tokens for text in texts):,} tokens")
    for name in recorder.drafters:
        agreed = statistics.fmean(n for text in texts for n in text.tracks[name].agreed)
        size = statistics.fmean(n for text in texts for n in text.tracks[name].size)
        print(f"  {name}: {agreed:.2f} of {size:.2f} proposed tokens agreed with the text, on average over positions")


def _recorder(options: Options, longest: int) -> Recorder:
    """The model, a decoder that writes with the first cheap drafter, and the drafters to be asked."""
    from wager.decoding.arms import build_drafters
    from wager.decoding.decoder import Decoder
    from wager.decoding.recorder import Recorder
    from wager.models import load

    console = Console(stderr=True)
    with console.status(f"loading {options.model} …", spinner="dots"):
        model, tokenizer = load(options.model, dtype=options.dtype, device=options.device, progress=console.print)
        drafters = build_drafters(options.specs, model, tokenizer)
        writes = next((s for s, d in zip(options.specs, drafters.values(), strict=True) if d.cheap), None)
        length = min(WRITES, longest)
        decoder = Decoder(
            model,
            tokenizer,
            drafters=writes or "off",
            policy=f"fixed:drafter={registry.parse(writes)[0]},length={length}" if writes else "off",
            lengths=(length, longest),
        )
    return Recorder(decoder, drafters, longest)


def _record(
    recorder: Recorder, asked: Sequence[tuple[Prompt, list[int]]], count: int, about: dict[str, Any], out: Path
) -> Iterator[Text]:
    """Texts, each written to the recording before it is handed on; the file is made with the first."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("timing forwards", total=len(asked))
        costs = _costs(recorder)
        writer: RecordingWriter | None = None
        try:
            for prompt, ids in asked:
                progress.update(bar, description=prompt.task)
                text = recorder.record(ids, prompt.task, count)
                progress.update(bar, advance=1)
                if text is None:
                    continue
                if writer is None:
                    costs["propose"] = {name: statistics.median(taken) for name, taken in recorder.seconds.items()}
                    writer = RecordingWriter(out, {**about, "costs": costs})
                writer.write(text)
                yield text
        finally:
            if writer is not None:
                writer.close()


def _costs(recorder: Recorder) -> dict[str, Any]:
    """Median seconds of the target's forwards by width, and of a draft model's steps and catching up."""
    longest, drafters = recorder.longest, recorder.drafters
    verify = _timed(recorder.decoder.target, range(1, longest + 2))
    models = {
        name: _timed(runner, (1, 1 + CAUGHT_UP))
        for name, drafter in drafters.items()
        if (runner := drafter.runner) is not None
    }
    return {
        "verify": [[width, seconds] for width, seconds in verify.items()],
        "step": {name: taken[1] for name, taken in models.items()},
        "lag": {name: max(0.0, taken[1 + CAUGHT_UP] - taken[1]) / CAUGHT_UP for name, taken in models.items()},
    }


def _timed(runner: Runner, widths: Sequence[int]) -> dict[int, float]:
    from wager.bench.engine import forward_seconds

    context = max(1, min(CONTEXT, runner.limit - max(widths)))
    taken = forward_seconds({"": runner}, widths, context=context, repeats=REPEATS)[""]
    return {width: statistics.median(seconds) for width, seconds in taken.items()}


def _described(recorder: Recorder, options: Options) -> dict[str, Any]:
    """What ran, by name: no path of this machine, which would say nothing elsewhere."""
    from wager.bench.engine import described

    local = Path(options.model)
    name = local.resolve().name if local.is_dir() else options.model
    return {"model": name, **described(recorder.decoder.model), "drafters": list(recorder.drafters)}
