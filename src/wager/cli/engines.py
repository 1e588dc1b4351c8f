"""`wager bench engine` and `wager bench generate`: the transformers engine, measured."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from wager.bench import methods as made
from wager.bench.methods import Method, Target
from wager.bench.runs import Run, TokenizedPrompt, tokenize
from wager.bench.summary import by_method, differences
from wager.bench.workloads import KNOWN, TASKS, prompts
from wager.cli.files import check_writable, write_json
from wager.cli.options import MODEL, Device, Dtype, Model
from wager.cli.parameters import parse_ints
from wager.cli.suite import progress
from wager.core import OFF, Arm
from wager.policies import build

if TYPE_CHECKING:
    from wager.drafters import Drafter

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 16, 32)
POLICIES = ("auto", "ucbspec", "meta-ucb", "analytical", "nightjar", "kl-ucb:reward=goodput")
ALONE = {"suffix": (2, 4, 8), "prompt-lookup": (4, 8), "retrieval": (4,), "draft-model": (3,)}  # lengths run alone
CLASSIFIED = 300  # prompts of a domain that the router's classifier is fitted to
SENTENCE = "The sea was calm that morning, and the harbour lay quiet in the early light."
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
    from wager.decoding.decoder import Decoder
    from wager.models import load
    from wager.models.hf_runner import HFRunner

    target, tokenizer = load(model, dtype=dtype, device=device)
    decoder = Decoder(target, tokenizer, drafters="suffix,prompt-lookup", policy="off")
    runners = {"transformers": HFRunner(target), "wager": decoder.target}
    rows = measure.widths(measure.forward_seconds(runners, WIDTHS, context=context, repeats=repeats))
    prompt = tokenizer(SENTENCE).input_ids
    playing = Decoder(target, tokenizer, drafters="suffix,prompt-lookup", policy="ucbspec")
    own = measure.spread(measure.own_seconds(playing, prompt, tokens))
    pairs = measure.off_against_plain(target, decoder, prompt, tokens, max(2, repeats // 3))
    off = measure.spread([theirs / ours for theirs, ours in pairs])
    graphs = {str(width): graph.seconds for width, graph in getattr(decoder.target, "captured", {}).items()}
    _print_engine(rows, own, off, graphs, context)
    if json_file is not None:
        content = {"model": model, **measure.described(target), "context": context, "widths": rows}
        write_json(json_file, {**content, "own_seconds_per_round": own, "off_to_plain": off, "capture_seconds": graphs})


def _print_engine(
    rows: Sequence[Mapping[str, Any]],
    own: Mapping[str, float],
    off: Mapping[str, float],
    graphs: Mapping[str, float],
    context: int,
) -> None:
    table = Table(title=f"one forward, {context} tokens of context, milliseconds (median)", title_justify="left")
    for column in ("width", "transformers", "wager", "wager / its width 1"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = (f"{row['seconds'][name]['median'] * 1e3:.2f}" for name in ("transformers", "wager"))
        table.add_row(str(row["width"]), *cells, f"{row['to_width_1']:.2f}")
    Console().print(table)
    print(f"wager's own Python per round: {own['median'] * 1e3:.3f} ms (quartiles {own['low'] * 1e3:.3f}, "
          f"{own['high'] * 1e3:.3f})")  # fmt: skip
    if graphs:
        seconds = graphs.values()
        print(f"captured {len(graphs)} widths: {statistics.median(seconds):.3f} s each, at most {max(seconds):.3f} s")
    print(f"off against plain generate: {off['median']:.3f}x (quartiles {off['low']:.3f}, {off['high']:.3f})")


Data = Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")]
Tasks = Annotated[list[str] | None, typer.Option(help="Task to run; repeat it.", show_default="all eight")]
Count = Annotated[int, typer.Option("--prompts", min=1, help="Prompts a task.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens an answer.")]
LongestPrompt = Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts are cut.")]
Datastore = Annotated[Path | None, typer.Option(help="Also the retrieval drafter, over this datastore.")]
Policies = Annotated[
    list[str] | None, typer.Option("--policy", "-p", help="Policy to run; repeat it.", show_default="six")
]
Lengths = Annotated[
    str, typer.Option(help="Lengths that policies choose from.", show_default="those of the fixed arms")
]
Layers = Annotated[int, typer.Option("--draft-layers", min=0, help="Layers of the target that draft; 0: none.")]
Arms = Annotated[
    str,
    typer.Option(
        help="Instead of all that: these arms, each alone, and policies over them; such as eagle:ofa:4,suffix:8."
    ),
]
Alone = Annotated[str, typer.Option(help="With --arms: further arms to run alone, which no policy chooses from.")]
Drafters = Annotated[
    list[str] | None,
    typer.Option(help="With --arms: a drafter that needs more than its name, such as retrieval=PATH; repeat it."),
]
Plain = Annotated[
    bool, typer.Option("--plain/--no-plain", help="With --arms: compare with transformers too, or with off only.")
]
Temperature = Annotated[float, typer.Option(min=0.0, help="With --arms: sample at this; 0 is greedy.")]
Sampling = Annotated[str, typer.Option(help="With --temperature: how tokens are drawn, shared-noise or residual.")]
Router = Annotated[
    Path | None,
    typer.Option(help="With --arms: also a classifier that picks a drafter once a prompt, trained on this plan's."),
]
Corpora = Annotated[Path, typer.Option(help="Folder the router's files are in.")]
Shuffle = Annotated[bool, typer.Option(help="Prompts of all tasks in one shuffled row.")]
Seed = Annotated[int, typer.Option(help="For prompts, their order, policies and sampled texts.")]


def generation(
    model: Model = MODEL,
    dtype: Dtype = "auto",
    device: Device = "auto",
    data: Data = None,
    task: Tasks = None,
    count: Count = 3,
    tokens: MaxTokens = 96,
    longest: LongestPrompt = 1024,
    policy: Policies = None,
    lengths: Lengths = "",
    datastore: Datastore = None,
    layers: Layers = 8,
    arms: Arms = "",
    alone: Alone = "",
    drafter: Drafters = None,
    plain: Plain = True,
    temperature: Temperature = 0.0,
    sampling: Sampling = "shared-noise",
    router: Router = None,
    corpora: Corpora = Path("."),
    shuffle: Shuffle = False,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Run transformers' own ways, wager's fixed arms and its policies on the same prompts, interleaved."""
    if json_file is not None:
        check_writable(json_file)
    chosen = prompts(data, tasks=task or TASKS, count=count, seed=seed)
    if shuffle:
        random.Random(seed).shuffle(chosen)
    free = parse_ints(lengths, "--lengths") if lengths else ()
    plan = Plan(_listed(arms), _listed(alone), tuple(policy or POLICIES), plain, free)
    plan.check(temperature, sampling)
    from wager.bench.draft_models import truncated
    from wager.bench.engine import described
    from wager.models import load

    target, tokenizer = load(model, dtype=dtype, device=device)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    classify = _classifier(router, corpora, target, tokenizer) if router is not None else None
    draft = truncated(target, layers) if layers and not plan.arms else None
    makers = {} if plan.arms else _makers(datastore, draft)
    shared = Target(target, tokenizer, seed=seed, specs=drafter or (), makers=makers, sampling=sampling, settings=how)
    asked = tokenize(chosen, tokenizer, longest, target.device)
    rows, texts = _compare(plan, shared, asked, tokens, draft, classify)
    _print(rows, sorted({p.task for p in chosen}, key=KNOWN.index), texts, sampled=bool(temperature))
    if json_file is not None:
        settings = {"model": model, **described(target), "max_tokens": tokens, "draft_layers": layers, **asdict(plan)}
        settings |= {"prompts": len(asked), "longest_prompt": longest, "shuffled": shuffle}
        settings |= {"temperature": temperature, "sampling": sampling}
        write_json(json_file, {**settings, "differences": texts, "methods": rows})


@dataclass(frozen=True, slots=True)
class Plan:
    """What `wager bench generate` compares."""

    arms: tuple[str, ...]  # run alone and chosen from by policies; none: a choice of drafters and lengths
    alone: tuple[str, ...]  # run alone only
    policies: tuple[str, ...]
    plain: bool = True  # also transformers
    lengths: tuple[int, ...] = ()  # that policies choose from where no arms are named

    def check(self, temperature: float, sampling: str) -> None:
        """Refuse what cannot be run, before a model is loaded."""
        from wager.decoding.sampler import RULES

        for arm in (*self.arms, *self.alone):
            Arm.parse(arm)
        for spec in self.policies:
            build(spec, (OFF, Arm("suffix", 2), Arm("suffix", 4)), tokens=100)
        if sampling not in RULES:
            raise ValueError(f"--sampling is {' or '.join(RULES)}, not {sampling!r}")
        if temperature and not self.arms:
            raise ValueError("--temperature needs --arms: without them all is greedy")

    def methods(
        self, makers: Mapping[str, Any], draft: Any, classify: Callable[[list[int]], str] | None
    ) -> tuple[list[Method], list[str]]:
        """The methods, and the arms that policies choose from; ``draft`` is the model that assists transformers."""
        plain = [made.transformers_method(made.PLAIN)] if self.plain or not self.arms else []
        arms, fixed = list(self.arms), [*self.arms, *self.alone]
        if not self.arms:
            plain.append(made.transformers_method(made.LOOKUP))
            if draft is not None:
                plain.append(made.transformers_method(made.ASSISTED, draft))
            fixed = [f"{name}:{length}" for name in makers for length in ALONE[name]]
            arms = [f"{name}:{length}" for name in makers for length in self.lengths or ALONE[name]]
        found = [*plain, made.arm_method(OFF), *(made.arm_method(Arm.parse(arm)) for arm in fixed)]
        found += [made.router_method(classify)] if classify is not None else []
        return [*found, *map(made.policy_method, self.policies)], arms


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _makers(datastore: Path | None, draft: Any) -> dict[str, Callable[[], Drafter]]:
    """The drafters that are compared where no arms are named."""
    from wager.drafters.draft_model import DraftModel
    from wager.drafters.prompt_lookup import PromptLookup
    from wager.drafters.retrieval import Retrieval
    from wager.drafters.suffix import Suffix

    makers: dict[str, Callable[[], Drafter]] = {"suffix": Suffix, "prompt-lookup": PromptLookup}
    if datastore is not None:
        makers["retrieval"] = lambda: Retrieval(datastore)
    if draft is not None:
        makers["draft-model"] = lambda: DraftModel(draft)
    return makers


def _compare(
    plan: Plan,
    shared: Target,
    asked: Sequence[TokenizedPrompt],
    tokens: int,
    draft: Any,
    classify: Callable[[list[int]], str] | None,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Run it all; figures by method, and whether the texts are the same, where that can be said."""
    methods, arms = plan.methods(shared.makers, draft, classify)
    generators = [method.make(shared, arms) for method in methods]
    every = dict.fromkeys([str(OFF), *arms, *(method.name for method in methods if method.kind == "arm")])
    run = Run(methods, asked, list(every), max_tokens=tokens, seed=shared.seed)
    with progress(Console(stderr=True), len(asked) * len(methods)) as (tell, warming):
        for prompt, name in run.play(generators, warming=warming):
            tell(f"{prompt.prompt.task}: {name}")
    summary = run.summary(None if shared.settings else shared.model)
    rows = by_method(summary)
    if not shared.settings:
        return rows, summary["differences"]
    if shared.sampling != "shared-noise":
        return rows, None
    drafting = [m.name for m in methods if m.kind in ("arm", "policy")]  # with shared noise a seed has one text
    return rows, differences(run.answers, asked, str(OFF), drafting)


def _classifier(plan: Path, corpora: Path, target: Any, tokenizer: Any) -> Callable[[list[int]], str]:
    """A classifier of prompts by domain, fitted to those of a training plan."""
    from wager.bench.routing import Classifier
    from wager.training import config
    from wager.training import prompts as planned

    counts: Counter[str] = Counter()
    known = []
    for prompt in planned.read(config.read(plan), corpora):
        if counts[prompt.domain] < CLASSIFIED:
            counts[prompt.domain] += 1
            ids = tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, return_dict=False)
            known.append((prompt.domain, ids))
    return Classifier(target.get_input_embeddings().weight, known)


def _print(rows: list[dict[str, Any]], tasks: list[str], texts: Mapping[str, Any] | None, *, sampled: bool) -> None:
    title = f"tokens a second, as a ratio to {rows[0]['method']}; steady: to off, stalls taken out; MAT"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for column in ("all", "quartiles", "steady", "MAT", *tasks):
        table.add_column(column, justify="right")
    for row in rows:
        low, high = row["quartiles"]
        cells = [f"{row['tasks'][task]['speedup']:.2f}" for task in tasks]
        steady = f"{row['steady']:.3f}" if row["steady"] else ""
        spread = f"{low:.2f} to {high:.2f}"
        table.add_row(row["method"], f"{row['speedup']:.3f}", spread, steady, f"{row['mat']:.2f}", *cells)
    Console(width=160).print(table)
    if texts is not None and sampled:
        print(f"{texts['texts']} of {texts['answers']} sampled texts are not those of off with the same seed")
    elif texts is not None:
        print(
            f"{texts['texts']} of {texts['answers']} texts differ from those of {rows[0]['method']} "
            f"({texts['unexplained']} unexplained); where they differ first, the logits are at most "
            f"{texts['largest_gap']:.2g} standard deviations apart"
        )
