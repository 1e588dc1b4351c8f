"""`wager train`: drafters for a target of one's own."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from wager.bench import workloads
from wager.bench.run_folder import check_folder
from wager.cli.files import Output
from wager.cli.options import Data, Device, Dtype, Target, Workload
from wager.cli.parameters import opt, option, options
from wager.cli.screen import bar, table, wide
from wager.cli.suite import model_name
from wager.report.scales import plural
from wager.training import answers as self_distillation
from wager.training import config as plans
from wager.training import prompts as made

app = typer.Typer(
    help="Make drafters for a target: generate its answers, train heads and small models on them, evaluate these.",
    no_args_is_help=True,
)
PlanFile = Annotated[Path, typer.Argument(help="What to train, in TOML: training/smollm2-135m.toml is one.")]
AnswersFolder = Annotated[Path, option("Folder of the target's answers.", "--answers")]
LONGEST = 4096  # tokens of a prompt by which kinds are told apart
SPEC_BENCH = ("mt_bench", *workloads.SPEC_BENCH)


@app.command("answers")
def answers(
    plan_file: PlanFile,
    folder: AnswersFolder = Path("build/answers"),
    data: Annotated[Path, option("Folder the plan's files are in.")] = Path("."),
    minutes: Annotated[
        float, option("Begin no further part of the prompts after so many minutes.", min=0, shown="no limit")
    ] = math.inf,
    shard: Annotated[str, option("I/N: only every N-th part, from the I-th; for several processes.")] = "1/1",
    engine: Annotated[str, option("What generates: transformers, or vllm.")] = "transformers",
    cache: Annotated[float | None, option("GiB of vLLM's KV cache.", "--cache", shown="most that is free")] = None,
    eager: Annotated[bool, option("vLLM neither compiles nor captures graphs.", "--eager")] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Generate the target's answers to the plan's prompts; a second run resumes where the first was stopped."""
    plan, which = plans.read(plan_file), re.fullmatch(r"(\d+)/(\d+)", shard)
    if which is None or not 1 <= int(which[1]) <= int(which[2]):
        raise ValueError(f"--shard is written I/N with I from 1 to N, such as 2/4, not {shard!r}")
    first, count = int(which[1]) - 1, int(which[2])
    if engine not in ("transformers", "vllm"):
        raise ValueError(f"--engine is transformers or vllm, not {engine!r}")
    prompts = made.read(plan, data)
    from wager.models import load_model, load_tokenizer, resolve
    from wager.training.target_check import check_target

    check_target(plan)
    work = self_distillation.parts(prompts, load_tokenizer(plan.target), plan.answers)
    if engine == "vllm":
        from wager.training.vllm_answers import vllm_engine

        longest = plan.answers.longest_prompt + plan.answers.max_tokens
        asked = vllm_engine(resolve(plan.target), longest=longest, dtype=dtype, cache=cache, eager=eager)
    else:
        asked = self_distillation.transformers_engine(load_model(plan.target, dtype=dtype, device=device))
    mine = len(work[first::count])
    with bar("answering", mine) as update:
        total, seconds = 0, 0.0

        def done(tokens: int, taken: float) -> None:
            nonlocal total, seconds
            total, seconds = total + tokens, seconds + taken
            update(advance=1, note=f"{total:,} tokens, {total / seconds:,.0f} a second" if seconds else "already there")

        left = self_distillation.answer(
            asked, work, folder, plan.answers.max_tokens, target=model_name(plan.target), shard=(first, count),
            minutes=minutes, done=done,
        )  # fmt: skip
    rate = f", {total / seconds:,.0f} a second" if seconds else ""
    print(f"{mine - left} of {mine} parts in {folder}: {total:,} new tokens{rate}")


@app.command("drafters")
def drafters(
    plan_file: PlanFile,
    names: Annotated[list[str] | None, typer.Argument(help="Which of the plan's drafters.", show_default="all")] = None,
    folder: AnswersFolder = Path("build/answers"),
    out: Annotated[Path, option("Folder to put the drafters in.")] = Path("drafters"),
    work: Annotated[Path, option("Folder for checkpoints and logs.")] = Path("build/training"),
    together: Annotated[bool, option("Train them in turn, a step each, on features computed once.")] = False,
    minutes: Annotated[float | None, option("With --together: stop all at the same step by then.", min=0.001)] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Train the plan's drafters on the answers; a second run resumes from the last checkpoint."""
    plan = plans.read(plan_file)
    if unknown := [name for name in names or () if name not in plan.drafters]:
        known = ", ".join(plan.drafters) or "none"
        raise ValueError(f"{plan_file} has no drafter {unknown[0]!r}; there are {known}")
    from wager.models import load_model
    from wager.models.fingerprint import fingerprint
    from wager.training import build, learners
    from wager.training.target_check import check_target

    names = list(dict.fromkeys(names or plan.drafters))
    check_folder(out)
    for name in names:
        build.check_place(out / name)
    check_target(plan, names)
    texts = list(self_distillation.texts(folder, model_name(plan.target)))
    model = load_model(plan.target, dtype=dtype, device=device)
    target, about = learners.Target(model), {"target": plan.target, "target_fingerprint": fingerprint(model)}
    chosen = [plan.drafters[name] for name in names]
    if minutes is not None and not together:
        raise ValueError("--minutes needs --together: drafters trained one after the other do not share the time")
    if together and (start := [drafter.start for drafter in chosen if drafter.start]):
        raise ValueError(
            f"--together trains drafters from scratch; train {start[0]} and those that start from it apart"
        )
    for group in [chosen] if together else [[drafter] for drafter in chosen]:
        pairs = [build.trainer(plan, drafter, target, texts, work) for drafter in group]
        _train(pairs, out, about, math.inf if minutes is None else minutes)


def _train(pairs: Sequence[tuple[Any, Any]], out: Path, about: dict[str, str], minutes: float) -> None:
    """Train, write every drafter whenever it is better than before, and say what came of each."""
    from wager.training.trainer import train

    trainers = [trainer for trainer, _ in pairs]
    exports = {trainer.drafter.name: export for trainer, export in pairs}
    steps, done = sum(t.drafter.steps for t in trainers), sum(t.progress.step for t in trainers)
    with bar(trainers[0].drafter.name if len(trainers) == 1 else "training", steps, done=done) as update:

        def shown(trainer: Any, look: Any) -> None:
            name, progress = trainer.drafter.name, trainer.progress
            if look and progress.best_step == progress.step:  # a run that is cut off leaves its best so far
                exports[name](out / name, about)
            if look is None:
                update(advance=1)
                return
            told = f"{name}: loss {progress.loss:.3f}, MAT {progress.best:.2f}"
            update(advance=1, note=told)
            if not sys.stderr.isatty():
                print(f"{told} at step {progress.step}", file=sys.stderr, flush=True)

        train(trainers, minutes=minutes, shown=shown)
    for trainer in trainers:
        name, best = trainer.drafter.name, trainer.progress
        exports[name](out / name, about)
        mat = f"MAT {best.best:.3f} on held-out answers at step {best.best_step}"
        print(f"{name}: {best.step} steps, {mat}; {out / name}")


@dataclass(frozen=True, slots=True)
class Judged(Workload):
    count: int = opt(10, "Prompts per task.", "--prompts", min=1)
    tokens: int = opt(128, "Tokens per answer.", "--max-tokens", min=8)
    longest: int = opt(1400, "Longer prompts are left out.", "--longest-prompt", min=16)
    task: list[str] | None = opt(None, "Task to run; repeat it.", shown="all ten")
    kept: Path | None = opt(None, "Keep the target's answers here, or take them from here.", "--answers")
    held_out: Path | None = opt(None, "Judge by the held-out answers of this folder too, by domain.", metavar="FOLDER")


@app.command("evaluate")
@options
def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Trained drafters.", show_default=False)],
    target: Target,
    workload: Judged,
    output: Output,
    cards: Annotated[
        Path | None,
        option(
            "The plan they were trained with: write each drafter's README.md, and its acceptance into config.json.",
            metavar="PLAN",
        ),
    ] = None,
) -> None:
    """Evaluate trained drafters on unseen prompts: tokens per round on every task, acceptance by position."""
    plan, tasks = plans.read(cards) if cards is not None else None, tuple(dict.fromkeys(workload.task or workloads.ALL))
    names = [folder.name for folder in folders]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two folders are called {twice!r}; name one of them otherwise, since figures go by name")
    chosen = workloads.prompts(workload.data, tasks=tasks, count=workload.count)
    from wager.core import files
    from wager.training import build, evaluate, learners
    from wager.training.card import card, note_acceptance, trees_told

    called, kept = model_name(target.model), workload.held_out
    held = [] if kept is None else evaluate.held_out(self_distillation.texts(kept, called))
    model, tokenizer = target.load()
    read = learners.Target(model)
    judged = {folder.name: build.loaded(folder, read) for folder in folders}
    asked = [made.Prompt(p.task, tuple(p.messages)) for p in chosen]
    with bar("answering") as update:
        sizes = (workload.tokens, workload.longest, workload.kept)
        texts = evaluate.greedy_answers(model, tokenizer, asked, *sizes, lambda n: update(advance=1, total=n), called)
    columns = (*tasks, *dict.fromkeys(text.domain for text in held))
    with bar("judging", len(judged) * len(columns)) as update:
        tell = lambda name, task: update(advance=1, note=f"{name} on {task}")  # noqa: E731
        rows = evaluate.judge_by_task(judged, [*texts, *held], columns, tell)
    _print(rows, columns)
    over = evaluate.mat_over(rows, SPEC_BENCH) if set(SPEC_BENCH) <= set(tasks) else {}
    for name, mat in over.items():
        print(f"{name}: {mat:.3f} tokens a round over Spec-Bench")
    homes = evaluate.at_home(rows, {folder.name: build.domains(folder) for folder in folders})
    for home in homes:
        print(f"{home['drafter']} at home ({home['on']}): {home['mat']:.2f}, {home['gain']:+.0%} over", end=" ")
        print(f"the next specialist; {', '.join(f'{k} {v:.2f}' for k, v in home['others'].items())}")
    how: dict[str, Any] = {"target": target.model, "max_tokens": workload.tokens}
    output.write({**how, "spec_bench_mat_4": over or None, "at_home": homes, "drafters": rows})
    if plan is not None and cards is not None:
        answered = f"{workload.count} prompts a task, answers of at most {workload.tokens} tokens"
        ran = f"{answered}, {model.device.type} in {model.dtype}".replace("torch.", "")
        for folder in folders:
            told = card(folder, plan, cards.name, rows[folder.name], ran) + trees_told(folder)
            files.write_text(folder / "README.md", told)
            note_acceptance(folder, rows[folder.name])


@app.command("kinds")
def kinds(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of drafters that were judged: wager train evaluate --cards.", show_default=False),
    ],
    model: Annotated[
        str | None,
        option("The target, whose tokens prompts are read in.", "--model", "-m", shown="the one in config.json"),
    ] = None,
    data: Data = None,
) -> None:
    """Store in a drafter's config.json which tokens are typical of prompts of each task that it was judged on, so that
    auto begins a new prompt with the drafter that suits its task."""
    from wager.core import files
    from wager.drafters.cards import read_card
    from wager.drafters.kinds import Kinds, made_of
    from wager.models import load_tokenizer
    from wager.training.card import note_kinds

    told: dict[Path, tuple[str, tuple[str, ...]]] = {}  # target and tasks
    for folder in folders:
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds no drafter; name a folder with a config.json, as `wager train` writes it")
        try:
            notes = files.read_json(folder / "config.json").get("wager")
        except ValueError as error:
            raise ValueError(f"{folder / 'config.json'} cannot be read: {error}") from None
        # of other tasks there are no prompts
        own = tuple(task for task in read_card(notes).by_task if task in workloads.ALL)
        if len(own) < 2 or not isinstance(notes, dict):
            raise ValueError(f"{folder} has no card that tells tasks apart; wager train evaluate --cards writes one")
        target = model or notes.get("target")
        if not target:
            raise ValueError(f"the card of {folder} names no target; say with --model whose tokens prompts are read in")
        told[folder] = str(target), own
    known: dict[tuple[str, tuple[str, ...]], Kinds] = {}
    for folder, (target, own) in told.items():
        if (target, own) not in known:
            tokenizer = load_tokenizer(target)
            # from one half of the prompts; the other half is for judging
            asked = workloads.prompts(data, tasks=own, count=sys.maxsize, part="development")
            read: dict[str, list[list[int]]] = {task: [] for task in own}
            for prompt in asked:
                read[prompt.task].append(prompt.ids(tokenizer, LONGEST, "cpu")[0].tolist())
            known[target, own] = made_of(read)
            print(f"{len(own)} kinds, of {plural(len(asked), 'prompt')} to {target}: {', '.join(own)}")
        note_kinds(folder, known[target, own])
        print(f"{folder}: noted")


@app.command("trees")
def trees(
    folder: Annotated[Path, typer.Argument(help="A trained head.", show_default=False)],
    recordings: Annotated[
        list[Path], typer.Argument(help="Made by wager lab record --trees, with this head.", show_default=False)
    ],
    name: Annotated[str | None, option("The head's name in the recordings.", shown="as the folder's")] = None,
) -> None:
    """Write what a head's trees had accepted in recordings into its config.json and README.md; auto starts from it."""
    from wager.core.recording import read
    from wager.training.card import note_trees, tree_acceptance

    named = name or folder.name.replace("-", ":", 1)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no drafter; name a folder with a config.json, as `wager train` writes it")
    read_ones = [read(path) for path in recordings]
    texts = [text for _, own in read_ones for text in own]
    found = tree_acceptance(texts, named)
    if not found:
        known = sorted(
            {
                f"{drafter} (trees: {', '.join(track.trees) or 'none'})"
                for t in texts
                for drafter, track in t.tracks.items()
            }
        )
        raise ValueError(f"no trees of {named} were recorded; there are {', '.join(known)}")
    made_by = [f"`{head.get('command')}` ({head.get('machine')}, {head.get('date')})" for head, _ in read_ones]
    note_trees(folder, found, f"{plural(len(texts), 'text')}, recorded by {' and '.join(made_by)}")
    for shape, rows in found.items():
        means = [sum(column) / len(rows) for column in zip(*rows.values(), strict=False)]
        print(f"{shape}: accepted at each depth {', '.join(f'{mean:.2f}' for mean in means)}, mean over tasks")


def _print(rows: dict[str, dict[str, Any]], tasks: Sequence[str]) -> None:
    """Tokens a round of drafts of four; the best drafter of a task stands out."""
    shown = table("tokens a round, drafts of 4 tokens", ("drafter", *tasks))
    best = {task: max(row[task]["mat"]["4"] for row in rows.values()) for task in tasks}
    for name, row in rows.items():
        mats = {task: row[task]["mat"]["4"] for task in tasks}
        shown.add_row(name, *(f"{'[bold]' if mat == best[task] else ''}{mat:.2f}" for task, mat in mats.items()))
    wide(160).print(shown)
