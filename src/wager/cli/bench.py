"""`wager bench`: a suite of prompts, and its subcommands."""

import typer

from wager.cli import compare_methods, load, suite

HELP = (
    "Measure the speed of decoding methods on the same prompts.\n\n"
    "Without options: transformers' own methods, fixed arms and auto on 21 prompts, about 9 minutes on two CPU cores. "
    "A run can be stopped at any time; the same command resumes it. See docs/bench.md."
)
app = typer.Typer(help=HELP)
app.callback(invoke_without_command=True)(suite.suite)
app.command("generate")(compare_methods.generation)
app.command("serve")(load.serve)
