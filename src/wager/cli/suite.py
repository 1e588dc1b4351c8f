"""`wager bench` itself: methods side by side on a suite of prompts, with a verdict in plain words."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console

from wager.bench import methods as made
from wager.bench import verdict, workloads
from wager.bench.run_folder import check_folder
from wager.bench.runs import Run, TokenizedPrompt, tokenize
from wager.cli.options import Reset, Target
from wager.cli.parameters import opt, option, options
from wager.cli.screen import bar, stage, table
from wager.cli.session import quietly
from wager.models.fingerprint import fingerprint
from wager.policies.base import PAPER, RESETS, require
from wager.report.scales import plural

QUICK = "quick"
QUICK_PROMPTS, QUICK_TOKENS, TOKENS = 3, 48, 128  # of each kind; an answer's, in the quick suite and in the others
SAVED = 30.0  # seconds between two savings of run.json
OUT = Path("wager-bench")
OWN_PROMPTS = "wager's own prompts"  # instead of a suite's that are not there
METHODS = """Separated by commas: transformers, transformers-lookup, transformers-assisted, off, arms such as suffix:4,
policies such as auto, which choose among those arms. transformers is always run."""
DEFAULT_TIME = "about 9 minutes on two CPU cores"  # of wager bench without options
LongestPrompt = Annotated[int, option("Longer prompts lose their middle.", "--longest-prompt", min=16)]


@dataclass(frozen=True, slots=True)
class Suite:
    """Which prompts, and how long their answers are."""

    suite: str = opt(QUICK, f"{QUICK}, spec-bench, humaneval, all, or any task; all but {QUICK} read --data.")
    limit: int | None = opt(
        None, "Prompts per task.", "--prompts", "--limit", min=1, shown=f"{QUICK_PROMPTS} in quick, else all"
    )
    max_tokens: int | None = opt(None, "Tokens per answer.", min=2, shown=f"{QUICK_TOKENS} in quick, else {TOKENS}")
    longest_prompt: LongestPrompt = 1024
    data: Path | None = opt(None, "Folder with prompts/.", shown="WAGER_DATA, else prompts that come with wager")
    seed: int = opt(0, "For the choice and order of prompts and methods.", min=0)
    reset: Reset = PAPER

    def __post_init__(self) -> None:
        require(self.reset in RESETS, f"--reset is {' or '.join(RESETS)}, not {self.reset!r}")

    def prompts(self) -> list[workloads.Prompt]:
        if self.suite == QUICK and self.data is not None:
            raise ValueError("the quick suite has prompts of its own; leave out --data, or choose another --suite")
        if self.suite == QUICK:
            return workloads.in_turn(workloads.own_prompts(count=self.limit or QUICK_PROMPTS), self.seed)
        return workloads.in_turn(workloads.suite_prompts(self.suite, self.data, self.limit, self.seed), self.seed)

    def settings(self) -> dict[str, Any]:
        """As in the run's file."""
        tokens = self.max_tokens or (QUICK_TOKENS if self.suite == QUICK else TOKENS)
        data = "folder" if self.suite != QUICK and workloads.has_data(self.data) else OWN_PROMPTS
        given = {"suite": self.suite, "seed": self.seed, "max_tokens": tokens, "longest_prompt": self.longest_prompt}
        return {**given, "data": data, "reset": self.reset}


@options
def suite(
    context: typer.Context,
    *,
    given: Suite,
    target: Target,
    methods: Annotated[str, option(METHODS, shown="a choice of each kind")] = "",
    out: Annotated[Path, option("Folder for the results; a run that was stopped is resumed there.")] = OUT,
    afresh: Annotated[bool, option("Overwrite a run that is there.", "--afresh")] = False,
) -> None:
    """Run transformers' own methods, fixed arms and policies on the same prompts, in turn, and say what is fastest."""
    if (command := context.invoked_subcommand) is not None:
        for param in context.command.params:  # options before a subcommand would do nothing
            source = context.get_parameter_source(str(param.name))
            if source is not None and source.name == "COMMANDLINE":
                after = f"give options after it, as in wager bench {command} --help"
                raise ValueError(f"{param.opts[0]} before {command} does nothing; {after}")
        return
    with quietly(target.model):
        _measure(target, given, methods, out, afresh=afresh)


def _measure(target: Target, given: Suite, named: str, out: Path, *, afresh: bool) -> None:
    """Run what is not in the folder yet; print the summary, the verdict and where the run's file is."""
    chosen, default = given.prompts(), made.QUICK if given.suite == QUICK else made.FULL
    methods = made.parse_methods(named) if named else made.default_methods(default, target.model)
    check_folder(out)  # before anything is loaded
    from wager.bench.draft_models import has_assistant
    from wager.bench.engine import measured

    told, settings = Console(stderr=True, highlight=False), given.settings()
    if given.suite != QUICK and settings["data"] == OWN_PROMPTS:
        told.print(f"no data folder: {given.suite} is run on {OWN_PROMPTS}; its own are read from --data or WAGER_DATA")
    tokens = settings["max_tokens"]
    with stage(f"loading {target.model} …", told):
        model, tokenizer = target.load(progress=told.print)
    if not named and not has_assistant(model):
        methods = [method for method in methods if method.name != made.ASSISTED]
    prompts = fitted(chosen, target.model, model, tokenizer, tokens, given.longest_prompt)
    marks = {"model": model_name(target.model), "weights": fingerprint(model)}
    arms = made.arms_of(methods, model)
    with Run(methods, prompts, arms, out, afresh=afresh, **settings, **measured(model), **marks) as run:
        total = len(prompts) * len(methods)
        if run.complete and len(run.answers) == total:
            told.print(f"{out} holds this run already, complete; --afresh measures it anew")
        elif run.answers:
            told.print(f"resuming: {len(run.answers)} of {plural(total, 'answer')} are there")
        else:
            told.print(_plan(prompts, methods, tokens, default=given == Suite() and not named), soft_wrap=True)
        if len(run.answers) < total:
            with stage("preparing the methods …", told):
                planned = {"tokens": len(prompts) * tokens, "answer": tokens, "reset": given.reset}
                shared = made.Target(model, tokenizer, seed=given.seed, **planned)
                generators = [method.make(shared, arms) for method in methods]
            _play(run, generators, tokenizer, told)
        summary = run.summary(model)
        said = verdict.words(summary)
        path = run.save(summary, said, complete=True)
    show(summary)
    print("\n".join(said))
    print(f"\nEverything is in {path}; for a page with pictures:\n  wager report {path} -o report.html")


def _plan(prompts: Sequence[Any], methods: Sequence[Any], tokens: int, *, default: bool) -> str:
    """What will be measured, and how long that takes where it is known."""
    many = f"{plural(len(prompts), 'prompt')} x {plural(len(methods), 'method')}, {tokens} tokens per answer"
    return f"{many}{f'; {DEFAULT_TIME}' if default else ''}; Ctrl-C stops it, the same command resumes it"


def fitted(
    chosen: Sequence[workloads.Prompt], name: str, model: Any, tokenizer: Any, tokens: int, longest: int
) -> list[TokenizedPrompt]:
    """The prompts with their tokens, cut so that the model's context holds them with an answer of ``tokens``."""
    from wager.models.runner import context_limit

    held = context_limit(model)
    require(held >= 16 + tokens, f"{name} holds {held:,} tokens: too few for answers of {tokens:,} and a prompt")
    return tokenize(chosen, tokenizer, min(longest, held - tokens), model.device)


def _play(run: Run, generators: list[made.TextGenerator], tokenizer: Any, told: Console) -> None:
    """Run what is left; where Ctrl-C stops it, what is there is saved and said."""
    total = len(generators) * len(run.prompts)
    try:
        with progress(told, total, len(run.answers)) as (tell, warming):
            saved = monotonic()
            for prompt, name in run.play(generators, tokenizer=tokenizer, warming=warming):
                tell(f"{prompt.id}: {name}")
                if monotonic() - saved > SAVED:
                    run.save(run.summary())
                    saved = monotonic()
    except KeyboardInterrupt:
        run.save(run.summary())
        told.print(f"\nstopped; {len(run.answers)} of {total} answers are kept, and the same command resumes the run")
        raise typer.Exit(130) from None


@contextmanager
def progress(told: Console, total: int, done: int = 0) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """A bar, or lines of text where there is no terminal: what to call after each answer and before each warm-up."""
    with bar("answers", total, done=done) as update:

        def warming(name: str) -> None:
            update(description=f"warming up {name}")
            if not told.is_terminal:
                told.print(f"warming up {name}")

        yield lambda what: update(advance=1, description=what), warming


def model_name(model: str) -> str:
    """The model's name; of a folder its last part, since the rest says nothing elsewhere."""
    return Path(model).resolve().name if os.path.isdir(os.path.expanduser(model)) else model


def show(summary: Mapping[str, Any]) -> None:
    """For all prompts and for each task, every method: its speed over ``off``, then over the first method."""
    base, first = summary["base"], summary["tasks"][:1]
    off = any(row["kind"] == "off" for task in first for row in task["methods"]) and base != "off"
    columns = ("", *(["x off"] if off else []), f"x {base}", "tokens/s", "MAT", "regret, s")
    shown = table("relative speed (95 % interval over prompts)", columns, box=None)
    for task in summary["tasks"][: 1 if len(summary["tasks"]) == 2 else None]:  # a single task is all of them
        shown.add_row()
        shown.add_row(f"{task['task']}, {plural(task['prompts'], 'prompt')}", style="bold")
        plain = next((row["tokens_per_second"] for row in task["methods"] if row["kind"] == "off"), None)
        for row in task["methods"]:
            best, regret = row["method"] == task["best_arm"], row["regret_seconds"]
            cells = [_ratio(row["speedup"], None if off else row["interval"])]  # one interval fits a row
            if off:
                cells.insert(0, _ratio(row["tokens_per_second"] / plain, row["over_off_interval"]))
            cells += (f"{row['tokens_per_second']:.1f}", f"{row['mat']:.2f}")
            beyond = f"{regret:+.2f}" if regret is not None and not best else ""
            shown.add_row(f"  {row['method']}{' *' * best}", *cells, beyond)
    console = Console(highlight=False)
    console.print(shown)
    if off:
        console.print(f"off: wager without speculation; {base}: model.generate, plain decoding", style="dim")
    console.print(f"MAT: {verdict.MAT}", style="dim")
    if any(task["best_arm"] for task in summary["tasks"]):
        console.print(f"*: the fastest fixed arm; regret: {verdict.REGRET}", style="dim")
    print()


def _ratio(value: float, interval: Sequence[float] | None) -> str:
    spread = " ({:.2f} to {:.2f})".format(*interval) if interval else ""
    return f"{value:.2f}{spread}"
