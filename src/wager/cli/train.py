"""`wager train`: drafters for a target of one's own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from wager.bench import workloads
from wager.cli.files import Output
from wager.cli.options import Device, Dtype, Target, Workload
from wager.cli.parameters import opt, option, options
from wager.cli.screen import bar, table, wide
from wager.training import answers as self_distillation
from wager.training import config as plans
from wager.training import prompts as made

app = typer.Typer(
    help="Make drafters for a target: generate its answers, train heads and small models on them, evaluate these.",
    no_args_is_help=True,
)
PlanFile = Annotated[Path, typer.Argument(help="What to train, in TOML: training/smollm2-135m.toml is one.")]
AnswersFolder = Annotated[Path, option("Folder of the target's answers.", "--answers")]
SPEC_BENCH = ("mt_bench", *workloads.SPEC_BENCH)


@app.command("answers")
def answers(
    plan_file: PlanFile,
    folder: AnswersFolder = Path("build/answers"),
    data: Annotated[Path, option("Folder the plan's files are in.")] = Path("."),
    shard: Annotated[str, option("I/N: only every N-th part, from the I-th; for several processes.")] = "1/1",
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Let the target answer the plan's prompts; a second run goes on where the first was stopped."""
    plan, which = plans.read(plan_file), re.fullmatch(r"(\d+)/(\d+)", shard)
    if which is None or not 1 <= int(which[1]) <= int(which[2]):
        raise ValueError(f"--shard is written I/N with I from 1 to N, such as 2/4, not {shard!r}")
    first, count = int(which[1]) - 1, int(which[2])
    prompts = made.read(plan, data)
    from wager.models import load

    model, tokenizer = load(plan.target, dtype=dtype, device=device)
    work = self_distillation.parts(prompts, tokenizer, plan.answers)
    mine = len(work[first::count])
    with bar("answering", mine) as update:
        total, seconds = 0, 0.0

        def done(tokens: int, taken: float) -> None:
            nonlocal total, seconds
            total, seconds = total + tokens, seconds + taken
            update(advance=1, note=f"{total:,} tokens, {total / seconds:,.0f} a second" if seconds else "already there")

        self_distillation.answer(model, work, folder, plan.answers.max_tokens, shard=(first, count), done=done)
    print(f"{mine} parts in {folder}: {total:,} new tokens" + (f", {total / seconds:,.0f} a second" if seconds else ""))


@app.command("drafters")
def drafters(
    plan_file: PlanFile,
    names: Annotated[list[str] | None, typer.Argument(help="Which of the plan's drafters.", show_default="all")] = None,
    folder: AnswersFolder = Path("build/answers"),
    out: Annotated[Path, option("Folder to put the drafters in.")] = Path("drafters"),
    work: Annotated[Path, option("Folder for checkpoints and logs.")] = Path("build/training"),
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
    from wager.training import build, learners

    texts = list(self_distillation.texts(folder))
    model = load_model(plan.target, dtype=dtype, device=device)
    target, mark = learners.Target(model), fingerprint(model)
    for name in names or plan.drafters:
        drafter = plan.drafters[name]
        trainer, export = build.trainer(plan, drafter, target, texts, work)
        with bar(name, drafter.steps, done=trainer.progress.step) as update:

            def shown(progress: Any, look: Any, update: Any = update) -> None:
                told = look or progress.looks
                update(advance=1, note=f"loss {progress.loss:.3f}, MAT {progress.best:.2f}" if told else "")

            trainer.run(shown=shown)
        export(out / name, {"target": plan.target, "target_fingerprint": mark})
        best = trainer.progress
        mat = f"MAT {best.best:.3f} on held-out answers at step {best.best_step}"
        print(f"{name}: {best.step} steps, {mat}; {out / name}")


@dataclass(frozen=True, slots=True)
class Judged(Workload):
    count: int = opt(10, "Prompts a task.", "--prompts", min=1)
    tokens: int = opt(128, "Tokens an answer.", "--max-tokens", min=8)
    longest: int = opt(1400, "Longer prompts are left out.", "--longest-prompt", min=16)
    task: list[str] | None = opt(None, "Task to run; repeat it.", shown="all ten")
    kept: Path | None = opt(None, "Keep the target's answers here, or take them from here.", "--answers")


@app.command("evaluate")
@options
def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Trained drafters.", show_default=False)],
    target: Target,
    workload: Judged,
    output: Output,
    cards: Annotated[Path | None, option("Plan by which to write each drafter's README.md.", metavar="PLAN")] = None,
) -> None:
    """Judge trained drafters on prompts they have not seen: tokens a round on every task, acceptance per position."""
    plan, tasks = plans.read(cards) if cards is not None else None, tuple(workload.task or workloads.ALL)
    chosen = workloads.prompts(workload.data, tasks=tasks, count=workload.count)
    from wager.training import build, learners
    from wager.training.card import card, note_acceptance
    from wager.training.evaluate import greedy_answers, judge_by_task, mat_over

    model, tokenizer = target.load()
    judged = {folder.name: build.loaded(folder, learners.Target(model)) for folder in folders}
    asked = [made.Prompt(p.task, tuple(p.messages)) for p in chosen]
    with bar("answering") as update:
        sizes = (workload.tokens, workload.longest, workload.kept)
        texts = greedy_answers(model, tokenizer, asked, *sizes, lambda n: update(advance=1, total=n))
    with bar("judging", len(judged) * len(tasks)) as update:
        tell = lambda name, task: update(advance=1, note=f"{name} on {task}")  # noqa: E731
        rows = judge_by_task(judged, texts, tasks, model, tell)
    _print(rows, tasks)
    over = mat_over(rows, SPEC_BENCH) if set(SPEC_BENCH) <= set(tasks) else {}
    for name, mat in over.items():
        print(f"{name}: {mat:.3f} tokens a round over Spec-Bench")
    how: dict[str, Any] = {"target": target.model, "max_tokens": workload.tokens}
    output.write({**how, "spec_bench_mat_4": over or None, "drafters": rows})
    if plan is not None:
        answered = f"{workload.count} prompts a task, answers of at most {workload.tokens} tokens"
        ran = f"{answered}, {model.device.type} in {model.dtype}".replace("torch.", "")
        for folder in folders:
            (folder / "README.md").write_text(card(folder, plan, rows[folder.name], ran), encoding="utf-8")
            note_acceptance(folder, rows[folder.name])


def _print(rows: dict[str, dict[str, Any]], tasks: Sequence[str]) -> None:
    """Tokens a round of drafts of four; the best drafter of a task stands out."""
    shown = table("tokens a round, drafts of 4 tokens", ("drafter", *tasks))
    best = {task: max(row[task]["mat"]["4"] for row in rows.values()) for task in tasks}
    for name, row in rows.items():
        mats = {task: row[task]["mat"]["4"] for task in tasks}
        shown.add_row(name, *(f"{'[bold]' if mat == best[task] else ''}{mat:.2f}" for task, mat in mats.items()))
    wide(160).print(shown)
