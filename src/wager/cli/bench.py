"""`wager bench`: a suite of prompts, and its subcommands."""

import typer

from wager.cli import compare_methods, load, suite

app = typer.Typer(help="Measure the speed of decoding methods on the same prompts.")
app.callback(invoke_without_command=True)(suite.suite)
app.command("generate")(compare_methods.generation)
app.command("serve")(load.serve)
