"""`wager serve`: stock `vllm serve` with speculation that adapts."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import tempfile
from typing import Annotated, Any

import typer

from wager.vllm import versions
from wager.vllm.settings import DRAFTERS, MAX_LENGTH, Settings

_WAGER, _KEEP = "Speculation", "Keeping and watching"

SETTLED = {"--scheduler-cls": "the scheduler hook is wager's"}


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="smollm2-135m (embedded), a folder, or a Hugging Face id.")],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            help="NAME or NAME:parameter=value,… See wager policies.",
            rich_help_panel=_WAGER,
            show_default="portfolio; nightjar with a drafter that vLLM runs",
        ),
    ] = "",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="Who drafts; repeat it or separate with commas. Side by side: prompt-lookup, suffix, retrieval=PATH. "
            "Run by vLLM, one of them: ngram, draft-model=MODEL, eagle=MODEL, eagle3=MODEL.",
            rich_help_panel=_WAGER,
            show_default=",".join(DRAFTERS),
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option(help="Most tokens drafted for a request in a step.", rich_help_panel=_WAGER)
    ] = MAX_LENGTH,
    budget: Annotated[
        int,
        typer.Option(help="Most tokens drafted in a step over all requests; 0: no limit.", rich_help_panel=_WAGER),
    ] = 0,
    uniform: Annotated[
        str,
        typer.Option(
            help="The same length for all requests of a step, which keeps a GPU in whole CUDA graphs: auto (where "
            "measured costs say so), always, never.",
            rich_help_panel=_WAGER,
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="The policy's seed.", rich_help_panel=_WAGER)] = 0,
    state: Annotated[
        str,
        typer.Option(
            help="File that keeps what the policy learned from one start to the next.",
            rich_help_panel=_KEEP,
            show_default="none",
        ),
    ] = "",
    control: Annotated[
        str,
        typer.Option(
            help="File that names the policy to play now; write another into it while the server runs.",
            rich_help_panel=_KEEP,
            show_default="none",
        ),
    ] = "",
    log_seconds: Annotated[
        float, typer.Option(help="Seconds between wager's log lines; 0: none.", rich_help_panel=_KEEP)
    ] = 10.0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, show what vLLM would be started with and what speculation costs while idle; stop.",
            rich_help_panel=_KEEP,
        ),
    ] = False,
) -> None:
    """Serve a model with the OpenAI API: stock vLLM, with speculation that adapts.

    Every other argument is vLLM's own (vllm serve --help), for example --port 8000 --max-model-len 4096. Metrics are
    on the server's /metrics; wager top URL shows them live. A request limits its own drafts with extra_body
    {"vllm_xargs": {"wager_max_length": 0}}.
    """
    names = tuple(name.strip() for given in drafter or [",".join(DRAFTERS)] for name in given.split(","))
    settings = Settings(names, max_length, policy, budget, uniform, seed, state, control, log_seconds)
    versions.check()
    with tempfile.TemporaryDirectory(prefix="wager-metrics-") as folder:
        # vLLM's /metrics collects from every process that writes into this folder: the one that decides is not the
        # server. Whoever imports prometheus_client before this is set keeps its numbers to itself.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        arguments = _arguments(model, settings, context.args)
        price = _check(arguments, context.args)
        if dry_run:
            print(shlex.join(["vllm", "serve", *arguments]))
            print("\n".join(price) or "speculation changes nothing else in an idle engine here")
            return
        for sentence in price:
            print(f"wager: {sentence}", file=sys.stderr)
        from wager.vllm.server import serve

        serve(arguments)


def _arguments(model: str, settings: Settings, given: list[str]) -> list[str]:
    """The command line for vLLM: what the user said, and ours."""
    from wager.vllm.launch import arguments

    rest: list[str] = []
    ours: dict[str, Any] = {}
    items = iter(given)
    for item in items:
        name, equals, value = item.partition("=")
        name = name.replace("_", "-")
        if name in SETTLED:
            raise ValueError(f"{name} cannot be given: {SETTLED[name]}")
        if name in ("--speculative-config", "--additional-config"):
            ours[name[2:].replace("-", "_")] = _object(name, value if equals else next(items, ""))
        elif name in ("--data-parallel-size", "-dp", "--dtype"):
            said = value if equals else next(items, "")
            ours["dtype" if name == "--dtype" else "data_parallel_size"] = said
        else:
            rest.append(item)
    made = arguments(model, settings, ours)
    where = made.pop("model")
    if where != model and not any(item.startswith("--served-model-name") for item in rest):
        rest += ["--served-model-name", model]
    for name, value in made.items():
        rest += ["--" + name.replace("_", "-"), json.dumps(value) if isinstance(value, dict) else str(value)]
    return [where, *rest]


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is a JSON object, not {text!r}")
    return value


def _check(arguments: list[str], given: list[str]) -> list[str]:
    """Let vLLM build its configuration before any process starts or weight is read: it refuses here what it refuses."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from wager.vllm.launch import price_of_speculation

    level = logging.getLogger("vllm").level
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it says all of it again when it starts
    parser = FlexibleArgumentParser(prog="vllm serve", add_help=False, exit_on_error=False)
    parser.add_argument("model_tag")
    parser = AsyncEngineArgs.add_cli_args(parser)
    try:
        parsed, _ = parser.parse_known_args(arguments)
        parsed.model = parsed.model_tag
        engine = AsyncEngineArgs.from_cli_args(parsed)
        speculating = engine.create_engine_config()
        engine.speculative_config, engine.scheduler_cls = None, None
        return price_of_speculation(engine.create_engine_config(), speculating)
    except SystemExit:
        raise ValueError(f"vLLM does not understand {shlex.join(given)}; see vllm serve --help") from None
    except Exception as error:  # vLLM refuses with errors of many kinds
        raise ValueError(f"vLLM refuses this: {_sentence(error)}") from error
    finally:
        logging.getLogger("vllm").setLevel(level)


def _sentence(error: Exception) -> str:
    """What was wrong, without the validator's frame around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "error, " in line:
            return line.partition("error, ")[2].partition(" [type=")[0]
    return lines[0] if lines else type(error).__name__
