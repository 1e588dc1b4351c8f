"""`wager bench`: a suite of prompts, and its subcommands."""

import typer

from wager.cli import compare_methods, load, suite

app = typer.Typer(help="Measure what wager costs and what it brings.")
app.callback(invoke_without_command=True)(suite.suite)
app.command("generate")(compare_methods.generation)
app.command("serve")(load.serve)
