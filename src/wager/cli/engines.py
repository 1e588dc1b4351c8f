"""`wager bench engine` and `wager bench generate`: the transformers engine, measured."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wager.bench.workloads import KNOWN, TASKS, prompts
from wager.cli.files import check_writable, write_json
from wager.cli.options import MODEL, Device, Dtype, Model
from wager.cli.simulate import parse_ints
from wager.core import OFF, Arm
from wager.policies import build

if TYPE_CHECKING:
    from wager.drafters import Drafter

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 16, 32)
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")]


def engine(
    model: Model = MODEL,
    dtype: Dtype = "auto",
    device: Device = "auto",
    context: Annotated[int, typer.Option(min=1, help="Tokens in the cache.")] = 300,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of text for the other measurements.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved repetitions.")] = 15,
    json_file: JsonFile = None,
) -> None:
    """Time one forward of every width, wager's own Python per round, and plain decoding through wager."""
    if json_file is not None:
        check_writable(json_file)
    from wager.bench import engine as measure
    from wager.bench.engine import described
    from wager.decoding.decoder import Decoder
    from wager.models import load
    from wager.models.hf_runner import HFRunner

    target, tokenizer = load(model, dtype=dtype, device=device)
    decoder = Decoder(target, tokenizer, drafters="suffix,prompt-lookup", policy="off")
    runners = {"transformers": HFRunner(target), "wager": decoder.target}
    taken = measure.forward_seconds(runners, WIDTHS, context=context, repeats=repeats)
    step = {name: measure.spread(times[1]) for name, times in taken.items()}
    table = Table(title=f"one forward, {context} tokens of context, milliseconds (median)", title_justify="left")
    for column in ("width", "transformers", "wager", "wager / its width 1"):
        table.add_column(column, justify="right")
    rows = []
    for width in WIDTHS:
        spreads = {name: measure.spread(times[width]) for name, times in taken.items()}
        ratio = spreads["wager"]["median"] / step["wager"]["median"]
        rows.append({"width": width, "seconds": spreads, "to_width_1": ratio})
        cells = (f"{spreads[name]['median'] * 1e3:.2f}" for name in ("transformers", "wager"))
        table.add_row(str(width), *cells, f"{ratio:.2f}")
    Console().print(table)
    prompt = tokenizer("The sea was calm that morning, and the harbour lay quiet in the early light.").input_ids
    playing = Decoder(target, tokenizer, drafters="suffix,prompt-lookup", policy="ucbspec")
    own = measure.spread(measure.own_seconds(playing, prompt, tokens))
    pairs = measure.off_against_plain(target, decoder, prompt, tokens, max(2, repeats // 3))
    captured = getattr(decoder.target, "captured", {})
    off = measure.spread([theirs / ours for theirs, ours in pairs])
    print(f"wager's own Python per round: {own['median'] * 1e3:.3f} ms (quartiles {own['low'] * 1e3:.3f}, "
          f"{own['high'] * 1e3:.3f})")  # fmt: skip
    if captured:
        seconds = [graph.seconds for graph in captured.values()]
        print(f"captured {len(captured)} widths: {statistics.median(seconds):.3f} s each, at most {max(seconds):.3f} s")
    print(f"off against plain generate: {off['median']:.3f}x (quartiles {off['low']:.3f}, {off['high']:.3f})")
    if json_file is not None:
        content = {"model": model, **described(target), "context": context, "widths": rows}
        graphs = {str(width): graph.seconds for width, graph in captured.items()}
        write_json(json_file, {**content, "own_seconds_per_round": own, "off_to_plain": off, "capture_seconds": graphs})


def generation(
    model: Model = MODEL,
    dtype: Dtype = "auto",
    device: Device = "auto",
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Task to run; repeat it.", show_default="all eight")] = None,
    count: Annotated[int, typer.Option("--prompts", min=1, help="Prompts a task.")] = 3,
    tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens an answer.")] = 96,
    longest: Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts are cut.")] = 1024,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="Policy to run; repeat it.", show_default="six")
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Lengths that policies choose from.", show_default="those of the fixed arms")
    ] = "",
    datastore: Annotated[Path | None, typer.Option(help="Also the retrieval drafter, over this datastore.")] = None,
    layers: Annotated[int, typer.Option("--draft-layers", min=0, help="Layers of the target that draft; 0: none.")] = 8,
    arms: Annotated[
        str,
        typer.Option(
            help="Instead of all that: these arms, each alone, and policies over them; such as eagle:ofa:4,suffix:8."
        ),
    ] = "",
    alone: Annotated[
        str, typer.Option(help="With --arms: further arms to run alone, which no policy chooses from.")
    ] = "",
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="With --arms: a drafter that needs more than its name, such as retrieval=PATH; repeat it."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain/--no-plain", help="With --arms: compare with transformers too, or with off only.")
    ] = True,
    temperature: Annotated[float, typer.Option(min=0.0, help="With --arms: sample at this; 0 is greedy.")] = 0.0,
    sampling: Annotated[
        str, typer.Option(help="With --temperature: how tokens are drawn, shared-noise or residual.")
    ] = "shared-noise",
    router: Annotated[
        Path | None,
        typer.Option(help="With --arms: also a classifier that picks a drafter once a prompt, trained on this plan's."),
    ] = None,
    corpora: Annotated[Path, typer.Option(help="Folder the router's files lie in.")] = Path("."),
    shuffle: Annotated[bool, typer.Option(help="Prompts of all tasks in one shuffled row.")] = False,
    seed: Annotated[int, typer.Option(help="For prompts, their order, policies and sampled texts.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Run transformers' own ways, wager's fixed arms and its policies on the same prompts, interleaved."""
    if json_file is not None:
        check_writable(json_file)
    chosen = prompts(data, tasks=task or TASKS, count=count, seed=seed)
    if shuffle:
        random.Random(seed).shuffle(chosen)
    named = [arm.strip() for arm in arms.split(",") if arm.strip()]
    single = [arm.strip() for arm in alone.split(",") if arm.strip()]
    for arm in [*named, *single]:
        Arm.parse(arm)
    free = parse_ints(lengths, "--lengths") if lengths else ()
    policies = policy or ["auto", "ucbspec", "meta-ucb", "analytical", "nightjar", "kl-ucb:reward=goodput"]
    for spec in policies:
        build(spec, (OFF, Arm("suffix", 2), Arm("suffix", 4)), tokens=100)  # refused now, not after loading a model
    from wager.bench import peers
    from wager.bench.engine import described
    from wager.decoding.choosing import RULES, SHARED
    from wager.drafters.draft_model import DraftModel
    from wager.drafters.prompt_lookup import PromptLookup
    from wager.drafters.retrieval import Retrieval
    from wager.drafters.suffix import Suffix
    from wager.models import load

    if sampling not in RULES:
        raise ValueError(f"--sampling is {' or '.join(RULES)}, not {sampling!r}")
    if temperature and not named:
        raise ValueError("--temperature needs --arms: without them all is greedy")
    target, tokenizer = load(model, dtype=dtype, device=device)
    drafters: dict[str, Callable[[], Drafter]] = {"suffix": Suffix, "prompt-lookup": PromptLookup}
    fixed = {"suffix": (2, 4, 8), "prompt-lookup": (4, 8)}
    if datastore is not None:
        drafters["retrieval"], fixed["retrieval"] = lambda: Retrieval(datastore), (4,)
    draft = peers.truncated(target, layers) if layers and not named else None
    if draft is not None:
        drafters["draft-model"], fixed["draft-model"] = lambda: DraftModel(draft), (3,)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    classifier = _classifier(router, corpora, target, tokenizer) if router is not None else None
    methods = (
        peers.over_arms(
            target,
            tokenizer,
            named,
            policies,
            plain=plain,
            classifier=classifier,
            alone=single,
            specs=drafter or (),
            sampling=sampling,
            seed=seed,
            **how,
        )
        if named
        else peers.standard(target, drafters, fixed, policies, draft, free)
    )
    asked = [(prompt, prompt.ids(tokenizer, longest, target.device)) for prompt in chosen]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("warming up", total=len(asked) * len(methods))
        for at, name in peers.play(methods, asked, tokens, seed=seed):
            progress.update(bar, advance=1, description=f"{at.task}: {name}")
    steady = peers.steady(methods)
    rows = [
        {**row, "steady": steady.get(row["method"])}
        for row in peers.summarize(methods, [prompt.task for prompt, _ in asked])
    ]
    ties: dict[str, Any] | None
    if temperature:
        ties = peers.unlike(methods) if sampling == SHARED else None
    else:
        ties = peers.ties(target, methods, [ids for _, ids in asked])
    _print(rows, sorted({p.task for p in chosen}, key=KNOWN.index))
    if ties is not None and temperature:
        print(f"{ties['texts']} of {ties['answers']} sampled texts are not those of wager off with the same seed")
    elif ties is not None:
        print(
            f"{ties['texts']} of {ties['answers']} texts differ from those of {methods[0].name} ({ties['unexplained']} "
            f"unexplained); where they part, the logits are at most {ties['largest_gap']:.2g} standard deviations apart"
        )
    if json_file is not None:
        said = {
            "model": model,
            **described(target),
            "prompts": len(asked),
            "max_tokens": tokens,
            "draft_layers": layers,
            "lengths": list(free),
            "arms": named,
            "alone": single,
            "shuffled": shuffle,
            "temperature": temperature,
            "sampling": sampling,
        }
        write_json(json_file, {**said, "longest_prompt": longest, "differences": ties, "methods": rows})


def _classifier(plan: Path, corpora: Path, target: Any, tokenizer: Any) -> Any:
    """A classifier of prompts by domain, from at most 300 of each of the plan's."""
    from wager.bench.routing import Classifier
    from wager.training import config
    from wager.training import prompts as made

    counts: Counter[str] = Counter()
    known = []
    for prompt in made.read(config.read(plan), corpora):
        if counts[prompt.domain] < 300:
            counts[prompt.domain] += 1
            ids = tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, return_dict=False)
            known.append((prompt.domain, ids))
    return Classifier(target.get_input_embeddings().weight, known)


def _print(rows: list[dict[str, Any]], tasks: list[str]) -> None:
    title = f"tokens a second, as a ratio to {rows[0]['method']}; steady: to wager off, stalls taken out; MAT"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for column in ("all", "quartiles", "steady", "MAT", *tasks):
        table.add_column(column, justify="right")
    for row in rows:
        low, high = row["quartiles"]
        cells = [f"{row['tasks'][task]['ratio']:.2f}" for task in tasks]
        steady = f"{row['steady']:.3f}" if row["steady"] else ""
        spread = f"{low:.2f} to {high:.2f}"
        table.add_row(row["method"], f"{row['ratio']:.3f}", spread, steady, f"{row['mat']:.2f}", *cells)
    Console(width=160).print(table)
