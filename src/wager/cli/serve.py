"""`wager serve`: stock `vllm serve` with speculation that adapts."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import tempfile
from argparse import Namespace
from copy import copy
from typing import Annotated, Any

import typer

from wager.vllm import versions
from wager.vllm.settings import DRAFTERS, MAX_LENGTH, POLICY, Settings

_WAGER, _KEEP = "Speculation", "Keeping and watching"

# Arguments of vLLM's that wager looks at or adds to.
KNOWN = (
    "additional_config",
    "compilation_config",
    "cudagraph_capture_sizes",
    "data_parallel_size",
    "dtype",
    "enforce_eager",
    "kv_cache_memory_bytes",
    "max_cudagraph_capture_size",
    "max_num_seqs",
    "pipeline_parallel_size",
    "scheduler_cls",
    "speculative_config",
)


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="smollm2-135m (embedded), a folder, or a Hugging Face id.")],
    policy: Annotated[
        str,
        typer.Option(
            help="NAME or NAME:parameter=value,… See wager policies.",
            rich_help_panel=_WAGER,
        ),
    ] = POLICY,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            "--drafters",
            help="Who drafts; repeat it or separate with commas. Side by side: prompt-lookup, suffix, retrieval=PATH. "
            "Run by vLLM, one of them: ngram, draft-model=MODEL, eagle=MODEL, eagle3=MODEL, and eagle:NAME or "
            "draft:NAME for one that lies ready for the model.",
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
            help="The maximum length or none for all requests of a step, which keeps a GPU in whole CUDA graphs: auto "
            "(by measured costs), always, never.",
            rich_help_panel=_WAGER,
        ),
    ] = "auto",
    policy_seed: Annotated[int, typer.Option(help="The policy's; --seed is vLLM's own.", rich_help_panel=_WAGER)] = 0,
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

    Every other argument is vLLM's own (vllm serve --help), for example --port 8000 --max-model-len 4096. On a CPU the
    model runs in float32 unless --dtype says otherwise.

    Metrics are on the server's /metrics; wager top URL shows them live. A request limits its own drafts with extra_body
    {"vllm_xargs": {"wager_max_length": 0}}.
    """
    if model.startswith("-"):
        raise ValueError(f"name the model first, as in wager serve smollm2-135m {model} …")
    names = tuple(name.strip() for given in drafter or [",".join(DRAFTERS)] for name in given.split(","))
    versions.check()
    from wager.vllm.launch import on_cpu
    from wager.vllm.placement import in_speculator

    matching = in_speculator(names, on_cpu=on_cpu(), budget=budget)
    settings = Settings(names, max_length, policy, budget, uniform, policy_seed, state, control, log_seconds, matching)
    with tempfile.TemporaryDirectory(prefix="wager-metrics-") as folder:
        # vLLM's /metrics collects from every process that writes into this folder: the one that decides is not the
        # server. Whoever imports prometheus_client before this is set keeps its numbers to itself.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        parsed, arguments = _configure(model, settings, context.args)
        price = _check(parsed)
        if dry_run:
            print(shlex.join(["vllm", "serve", *arguments]))
            print("\n".join(price) or "speculation changes nothing else in an idle engine here")
            return
        for sentence in price:
            print(f"wager: {sentence}", file=sys.stderr)
        from wager.vllm.server import run

        run(parsed)


def _configure(model: str, settings: Settings, given: list[str]) -> tuple[Namespace, list[str]]:
    """What vLLM is to be started with, and what ours of it looks like on a command line."""
    from wager.vllm.launch import arguments
    from wager.vllm.server import parse

    parsed = parse([model, *given])
    plain = parse([model])
    # What of it wager must know or adds to; the rest stays as vLLM read it.
    known = {key: getattr(parsed, key) for key in KNOWN if getattr(parsed, key, None) != getattr(plain, key, None)}
    made = arguments(model, settings, known)
    ours: list[str] = []
    for key, value in made.items():
        setattr(parsed, "model_tag" if key == "model" else key, value)
        if key != "model" and value != known.get(key):
            ours += ["--" + key.replace("_", "-"), *_written(value)]
    if made["model"] != model and not parsed.served_model_name:
        parsed.served_model_name = [model]
        ours += ["--served-model-name", model]
    return parsed, [made["model"], *given, *ours]


def _written(value: Any) -> list[str]:
    """A value as words of a command line."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


def _check(parsed: Namespace) -> list[str]:
    """Let vLLM build its configuration before any process starts or weight is read: it refuses here what it refuses."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    from wager.vllm.launch import price_of_speculation

    level = logging.getLogger("vllm").level
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it says all of it again when it starts
    try:
        given = copy(parsed)
        given.model = given.model_tag
        engine = AsyncEngineArgs.from_cli_args(given)
        speculating = engine.create_engine_config()
        engine.speculative_config, engine.scheduler_cls = None, None
        return price_of_speculation(engine.create_engine_config(), speculating)
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
