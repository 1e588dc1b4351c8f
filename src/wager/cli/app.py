"""The commands. A module is imported when its command is called: help, completion and the version need none of them."""

import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import wager
from wager.cli.parameters import option


def nearest(wrong: str, known: Any) -> str:
    """As in wager.core, which help and the version do without."""
    from wager.core.require import nearest as guess

    return guess(wrong, known)


class Entry(NamedTuple):
    """A command, or a group of them, before it is imported."""

    where: str  # MODULE:NAME in wager.cli
    summary: str  # how the first sentence of its own help begins; a test compares them
    panel: str | None = None
    more: tuple[str, ...] = ()  # what of an unknown command line it takes: extra_args, unknown_options


_POLICIES, _ENGINE, _SERVERS, _EXTRA = "Policies", "The transformers engine", "Servers", ("allow_extra_args",)
_LOAD = (_SERVERS, _EXTRA)  # what takes arguments of servers, after --
COMMANDS = {
    "generate": Entry("generate:command", "Generate a text with adaptive speculative decoding."),
    "chat": Entry("chat:command", "Talk to a model in the terminal."),
    "serve": Entry("serve:command", "Serve a model with the OpenAI API.", None, (*_EXTRA, "ignore_unknown_options")),
    "top": Entry("top:command", "Watch a running server."),
    "tune": Entry("tune:command", "Find out in two minutes whether your model should speculate."),
    "bench": Entry("bench:app", "Measure the speed of decoding methods on the same prompts."),
    "report": Entry("report:command", "Make one self-contained page of charts."),
    "train": Entry("train:app", "Make drafters for a target."),
    "datastore": Entry("datastore:app", "Make and inspect datastores for the retrieval drafter."),
    "policies": Entry("policies:command", "List every policy with the paper it comes from."),
}
LAB = {
    "simulate": Entry("simulate:command", "Play policies in a simulated environment.", _POLICIES),
    "record": Entry("record:command", "Record what each drafter would have had accepted.", _POLICIES),
    "replay": Entry("replay:command", "Replay recorded texts under policies.", _POLICIES),
    "trace": Entry("trace:command", "Summarise a recorded trace.", _POLICIES),
    "decisions": Entry("engine:decisions", "Time choose plus observe of every policy.", _POLICIES),
    "costs": Entry("costs:command", "Time the rounds of a target of a given shape.", _ENGINE),
    "rounds": Entry("costs:rounds", "Time rounds of a head on CUDA, stage by stage.", _ENGINE),
    "engine": Entry("engine:engine", "Time one forward of every width.", _ENGINE),
    "first-token": Entry("first_token:command", "Time the first token of new processes.", _ENGINE),
    "overhead": Entry("engine:overhead", "Time plain decoding through transformers' own forward.", _ENGINE),
    "identity": Entry("engine:identity", "Compare wager's greedy texts with plain decoding's.", _ENGINE),
    "memory": Entry("engine:memory", "Watch the process's memory over many requests.", _ENGINE),
    "versus": Entry("servers:versus", "Compare no speculation, fixed lengths, vLLM's own table and policies.", *_LOAD),
    "drafters": Entry("servers:drafters", "Compare each drafter alone with all of them in one engine.", *_LOAD),
    "steps": Entry("engine:steps", "Time what deciding and bookkeeping add to a server's step.", _SERVERS),
    "endurance": Entry("servers:endurance", "Put many requests of random lengths, some aborted, on a server.", *_LOAD),
}
GROUPS = {"wager": COMMANDS, "lab": LAB}
# What earlier versions called otherwise: group and command -> where it is now.
_MEASURED = ("engine", "decisions", "identity", "memory", "endurance", "steps", "versus", "drafters")
MOVED = {
    **{f"wager {name}": f"wager lab {name}" for name in ("simulate", "record", "replay", "trace")},
    **{f"bench {name}": f"wager lab {name}" for name in _MEASURED},
    "wager reproduce": "python -m reproduction, in a checkout",
}
RENAMED = {"--memory": "--state", "--no-memory": "--no-state"}  # options of generate and chat


class Commands(TyperGroup):
    """Knows the names and summaries of its commands, and imports the one that is called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            if text := ctx.get_help():  # where typer did not draw it
                print(text)
            raise typer.Exit(2)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("wager: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        called = f"{self.name} {args[0]}" if args else ""
        if called in MOVED and not ctx.resilient_parsing:
            raise ValueError(f"{'wager ' * (self.name != 'wager')}{called} is now {MOVED[called]}")
        if args and args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            wrong, near = f"{ctx.command_path} {args[0]}", nearest(args[0], self.commands)
            raise ValueError(f"unknown command {wrong!r}{near}; choose from {', '.join(self.commands)}")
        name, command, rest = super().resolve_command(ctx, args)
        if called in ("wager generate", "wager chat"):
            for word in filter(RENAMED.__contains__, rest):
                raise ValueError(f"{word} is now {RENAMED[word]}")
        entry = GROUPS.get(self.name or "", {}).get(name or "")
        return name, loaded(str(name), entry) if entry is not None else command, rest


def loaded(name: str, entry: Entry) -> Any:
    """The command, its module imported."""
    module, _, what = entry.where.partition(":")
    found = getattr(import_module(f"wager.cli.{module}"), what)
    alone = typer.Typer(rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, cls=Commands)
    else:
        alone.command(name, context_settings=dict.fromkeys(entry.more, True))(found)
    return typer.main.get_group(alone).commands[name]


def _group(name: str, help: str) -> typer.Typer:
    how: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": "rich", "pretty_exceptions_enable": False}
    made = typer.Typer(name=name, cls=Commands, help=help, **how)
    for command, entry in GROUPS[name].items():
        made.command(command, help=entry.summary, rich_help_panel=entry.panel)(lambda: None)
    return made


app = _group(
    "wager", "Adaptive speculative decoding: faster generation, the same text up to rounding ties, nothing to tune."
)
app.add_typer(_group("lab", "Research tools: simulate and replay policies, measure the engine and servers."))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"wager {wager.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, option("Print the version.", "--version", callback=_version, is_eager=True)] = False,
) -> None:
    pass
