"""`wager train`: drafters for a target of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wager.bench import workloads
from wager.cli.files import check_writable, write_json
from wager.cli.options import Device, Dtype
from wager.training import config as plans
from wager.training import prompts as made

if TYPE_CHECKING:
    from wager.training.answers import Done, Text

app = typer.Typer(
    help="Make drafters for a target: let it answer prompts, train heads and small models on the answers, judge them.",
    no_args_is_help=True,
)
PlanFile = Annotated[Path, typer.Argument(help="What to train, in TOML: training/smollm2-135m.toml is one.")]
AnswersFolder = Annotated[Path, typer.Option("--answers", help="Folder of the target's answers.")]
SPEC_BENCH = ("mt_bench", *workloads.SPEC_BENCH)
LENGTHS = (1, 2, 3, 4, 5)


@app.command("answers")
def answers(
    plan_file: PlanFile,
    folder: AnswersFolder = Path("build/answers"),
    data: Annotated[Path, typer.Option(help="Folder the plan's files lie in.")] = Path("."),
    shard: Annotated[
        str, typer.Option(help="I/N: only every N-th part, from the I-th; for several processes.")
    ] = "1/1",
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Let the target answer the plan's prompts; a second run goes on where the first was stopped."""
    plan = plans.read(plan_file)
    which = _shard(shard)
    prompts = made.read(plan, data)
    from wager.models import load
    from wager.training import answers as self_distillation

    model, tokenizer = load(plan.target, dtype=dtype, device=device)
    work = self_distillation.parts(prompts, tokenizer, plan.answers)
    mine = len(work[which[0] :: which[1]])
    with _bar("answering", mine) as advance:
        total, seconds = 0, 0.0

        def done(part: Done) -> None:
            nonlocal total, seconds
            total, seconds = total + part.tokens, seconds + part.seconds
            advance(f"{total:,} tokens, {total / seconds:,.0f} a second" if seconds else "already there")

        self_distillation.answer(model, work, folder, plan.answers.max_tokens, shard=which, done=done)
    print(f"{mine} parts in {folder}: {total:,} new tokens" + (f", {total / seconds:,.0f} a second" if seconds else ""))


@app.command("drafters")
def drafters(
    plan_file: PlanFile,
    names: Annotated[list[str] | None, typer.Argument(help="Which of the plan's drafters.", show_default="all")] = None,
    folder: AnswersFolder = Path("build/answers"),
    out: Annotated[Path, typer.Option(help="Folder to put the drafters in.")] = Path("drafters"),
    work: Annotated[Path, typer.Option(help="Folder for checkpoints and logs.")] = Path("build/training"),
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Train the plan's drafters on the answers; a second run goes on from the last checkpoint."""
    plan = plans.read(plan_file)
    if unknown := [name for name in names or () if name not in plan.drafters]:
        known = ", ".join(plan.drafters) or "none"
        raise ValueError(f"{plan_file} has no drafter {unknown[0]!r}; there are {known}")
    from wager.models import load_model
    from wager.models.fingerprint import fingerprint
    from wager.training import answers as self_distillation
    from wager.training import build
    from wager.training.learners import Target

    texts = list(self_distillation.texts(folder))
    model = load_model(plan.target, dtype=dtype, device=device)
    target, mark = Target(model), fingerprint(model)
    for name in names or plan.drafters:
        drafter = plan.drafters[name]
        trainer, export = build.trainer(plan, drafter, target, texts, work)
        with _bar(name, drafter.steps, done=trainer.progress.step) as advance:
            trainer.run(
                shown=lambda p, look: advance(f"loss {p.loss:.3f}, MAT {p.best:.2f}" if look or p.looks else "")
            )
        export(out / name, {"target": plan.target, "target_fingerprint": mark})
        best = trainer.progress
        print(
            f"{name}: {best.step} steps, MAT {best.best:.3f} on held-out answers at step {best.best_step}; {out / name}"
        )


@app.command("evaluate")
def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Trained drafters.", show_default=False)],
    target: Annotated[str, typer.Option("--model", "-m", help="Their target.")] = "smollm2-135m",
    data: Annotated[Path | None, typer.Option(help="Folder with prompts/.", show_default="WAGER_DATA")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Task to run; repeat it.", show_default="all ten")] = None,
    count: Annotated[int, typer.Option("--prompts", min=1, help="Prompts a task.")] = 10,
    tokens: Annotated[int, typer.Option("--max-tokens", min=8, help="Tokens an answer.")] = 128,
    longest: Annotated[int, typer.Option("--longest-prompt", min=16, help="Longer prompts are left out.")] = 1400,
    kept: Annotated[
        Path | None, typer.Option("--answers", help="Keep the target's answers here, or take them from here.")
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    cards: Annotated[
        Path | None, typer.Option(help="Also write each drafter's card, README.md, by this plan.", metavar="PLAN")
    ] = None,
) -> None:
    """Judge trained drafters on prompts they have not seen: tokens a round on every task, acceptance per position."""
    if json_file is not None:
        check_writable(json_file)
    plan = plans.read(cards) if cards is not None else None
    tasks = tuple(task or workloads.ALL)
    chosen = workloads.prompts(data, tasks=tasks, count=count)
    import torch

    from wager.models import load
    from wager.training import build
    from wager.training.card import card
    from wager.training.judge import judge
    from wager.training.learners import Target

    model, tokenizer = load(target, dtype=dtype, device=device)
    judged = {folder.name: build.loaded(folder, Target(model)) for folder in folders}
    texts = _greedy(model, tokenizer, chosen, tokens, longest, kept)
    rows: dict[str, dict[str, Any]] = {}
    with _bar("judging", len(judged) * len(tasks)) as advance:
        for name, learner in judged.items():
            rows[name] = {}
            for one in tasks:
                own = [text for text in texts if text.domain == one]
                with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
                    found = judge(learner, own, 16384, model.device, LENGTHS)
                rows[name][one] = {
                    "texts": len(own),
                    "mat": {str(j.length): round(j.mat, 4) for j in found},
                    "acceptance": [round(share, 4) for share in found[-1].acceptance],
                    "rounds": {str(j.length): j.rounds for j in found},
                    "tokens": {str(j.length): j.tokens for j in found},
                }
                advance(f"{name} on {one}")
    _print(rows, tasks)
    over = _over(rows) if set(SPEC_BENCH) <= set(tasks) else {}
    for name, mat in over.items():
        print(f"{name}: {mat:.3f} tokens a round over Spec-Bench")
    if json_file is not None:
        write_json(
            json_file, {"target": target, "max_tokens": tokens, "spec_bench_mat_4": over or None, "drafters": rows}
        )
    if plan is not None:
        how = f"{count} prompts a task, answers of at most {tokens} tokens, {model.device.type} in {model.dtype}"
        for folder in folders:
            text = card(folder, plan, rows[folder.name], how.replace("torch.", ""))
            (folder / "README.md").write_text(text, encoding="utf-8")


def _greedy(
    model: Any,
    tokenizer: Any,
    chosen: Sequence[workloads.Prompt],
    tokens: int,
    longest: int,
    kept: Path | None,
) -> list[Text]:
    """The target's greedy answers to the prompts."""
    from tempfile import TemporaryDirectory

    from wager.training import answers as self_distillation

    asked = [made.Prompt(p.task, tuple(p.messages)) for p in chosen]
    batch = 256 if model.device.type == "cuda" else 1
    how = plans.Answers((0.0,), (1.0,), tokens, longest, batch)
    work = self_distillation.parts(asked, tokenizer, how)
    with TemporaryDirectory() as spare, _bar("answering", len(work)) as advance:
        folder = kept or Path(spare)
        self_distillation.answer(model, work, folder, tokens, done=lambda part: advance(f"{part.texts} texts"))
        wanted = {prompt.key for part in work for prompt, _ in part.prompts}
        found = {text.key: text for text in self_distillation.texts(folder) if text.key in wanted}
    if found.keys() != wanted:
        raise ValueError(f"{folder} holds answers to other prompts; give another folder with --answers")
    return list(found.values())


def _over(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Tokens a round of drafts of four over all of Spec-Bench, for every drafter."""
    return {
        name: round(sum(row[t]["tokens"]["4"] for t in SPEC_BENCH) / sum(row[t]["rounds"]["4"] for t in SPEC_BENCH), 4)
        for name, row in rows.items()
    }


def _print(rows: dict[str, dict[str, Any]], tasks: Sequence[str]) -> None:
    """Tokens a round of drafts of four; the best drafter of a task stands out."""
    table = Table(title="tokens a round, drafts of 4 tokens", title_justify="left")
    table.add_column("drafter", no_wrap=True)
    for one in tasks:
        table.add_column(one, justify="right")
    best = {one: max(row[one]["mat"]["4"] for row in rows.values()) for one in tasks}
    for name, row in rows.items():
        cells = [f"{row[one]['mat']['4']:.2f}" for one in tasks]
        marked = [
            f"[bold]{c}[/bold]" if row[one]["mat"]["4"] == best[one] else c for c, one in zip(cells, tasks, strict=True)
        ]
        table.add_row(name, *marked)
    Console(width=160).print(table)


def _shard(text: str) -> tuple[int, int]:
    first, slash, of = text.partition("/")
    if not (slash and first.isdecimal() and of.isdecimal() and 1 <= int(first) <= int(of)):
        raise ValueError(f"--shard is written I/N with I from 1 to N, such as 2/4, not {text!r}")
    return int(first) - 1, int(of)


@contextmanager
def _bar(what: str, total: int, *, done: int = 0) -> Iterator[Callable[[str], None]]:
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total, completed=done)
        yield lambda text: progress.update(bar, advance=1, description=text)
