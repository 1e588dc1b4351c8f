"""`wager serve`: stock `vllm serve` with speculation that adapts."""

import json
import os
import shlex
import socket
import sys
import tempfile
from argparse import ArgumentError, ArgumentParser, Namespace
from copy import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from wager.cli.parameters import argument, opt, option, options
from wager.models.resolve import check_name
from wager.policies.base import require
from wager.policies.registry import parse
from wager.vllm import compat
from wager.vllm.settings import DRAFTERS, MAX_LENGTH, POLICY, Settings

_KEEP = "Keeping and watching"
_DRAFTERS = """Drafters; repeat it or separate with commas. Side by side: prompt-lookup, suffix, retrieval=PATH. Run by
vLLM, one of them: ngram, draft-model=MODEL, eagle=MODEL, eagle3=MODEL, eagle:NAME, eagle3:NAME, draft:NAME (trained
for it)."""

# Arguments of vLLM's that wager looks at or adds to.
KNOWN = (
    *("additional_config", "compilation_config", "cudagraph_capture_sizes", "data_parallel_size", "dtype"),
    *("enforce_eager", "kv_cache_memory_bytes", "max_cudagraph_capture_size", "max_num_seqs"),
    *("pipeline_parallel_size", "scheduler_cls", "speculative_config"),
)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What wager adds to vLLM."""

    PANEL: ClassVar = "Speculation"

    policy: str = opt(POLICY, "NAME or NAME:parameter=value,… See wager policies.")
    drafter: list[str] | None = opt(None, _DRAFTERS, "--drafter", "--drafters", shown=",".join(DRAFTERS))
    max_length: int = opt(MAX_LENGTH, "Most tokens drafted for a request in a step.")
    budget: int = opt(0, "Most tokens drafted in a step over all requests; 0: no limit.")
    uniform: str = opt("auto", "One length in a step, so that a GPU keeps whole CUDA graphs: auto, always, never.")
    policy_seed: int = opt(0, "The policy's; --seed is vLLM's own.")
    state: str = opt(
        "", "File that keeps the policy's state, or a folder that replicas share.", panel=_KEEP, shown="none"
    )
    control: str = opt("", "File with the policy's name; write another to change it.", panel=_KEEP, shown="none")
    log_seconds: float = opt(10.0, "Seconds between wager's log lines; 0: none.", panel=_KEEP)

    def settings(self) -> Settings:
        """As vLLM's hooks read them; what is wrong on any platform is refused before vLLM is imported."""
        names = tuple(name.strip() for given in self.drafter or [",".join(DRAFTERS)] for name in given.split(","))
        Settings(names, self.max_length, uniform=self.uniform, log_seconds=self.log_seconds)
        parse(self.policy)
        from wager.vllm.launch import on_cpu
        from wager.vllm.placement import in_speculator

        matching = in_speculator(names, on_cpu=on_cpu(), budget=self.budget)
        own = (self.max_length, self.policy, self.budget, self.uniform, self.policy_seed, self.state, self.control)
        return Settings(names, *own, self.log_seconds, matching)


@options
def command(
    context: typer.Context,
    model: Annotated[str, argument("smollm2-135m (fetched once), a folder, or a Hugging Face id.")],
    speculation: Speculation,
    dry_run: Annotated[bool, option("Check, show what vLLM would get, and stop.", "--dry-run", panel=_KEEP)] = False,
) -> None:
    """Serve a model with the OpenAI API: stock vLLM, with speculation that adapts.

    Every other argument is vLLM's own (vllm serve --help), for example --port 8000 --max-model-len 4096. With a
    --speculative-config of your own (MTP, EAGLE-3, …) its draft length adapts, up to its num_speculative_tokens. On a
    CPU the model runs in float32 unless --dtype says otherwise.

    Metrics are on the server's /metrics; wager top URL shows them live. A request limits its own drafts with extra_body
    {"vllm_xargs": {"wager_max_length": 0}}.
    """
    require(not model.startswith("-"), f"name the model first, as in wager serve smollm2-135m {model} …")
    compat.check_version()
    check_name(model)
    if not dry_run and (named := _named_port(context.args)) is not None:
        _check_port(named)
    settings = speculation.settings()
    with tempfile.TemporaryDirectory(prefix="wager-metrics-") as folder:
        # vLLM's /metrics collects from every process that writes into this folder: the one that decides is not the
        # server. Whoever imports prometheus_client before this is set keeps its numbers to itself.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        parsed, arguments = _configure(model, settings, context.args)
        if not dry_run:
            _check_port(parsed)  # before vLLM's configuration, which takes long
        overhead = _check(parsed)
        if dry_run:
            print(shlex.join(["vllm", "serve", *arguments]))
            print("\n".join(overhead) or "speculation changes nothing else in an idle engine here")
            return
        for sentence in overhead:
            print(f"wager: {sentence}", file=sys.stderr)
        from wager.vllm.server import run

        run(parsed)


def _configure(model: str, settings: Settings, given: list[str]) -> tuple[Namespace, list[str]]:
    """What vLLM is to be started with, and what ours of it looks like on a command line."""
    from wager.vllm.launch import arguments
    from wager.vllm.server import parse_arguments

    parsed, plain = parse_arguments([model, *given]), parse_arguments([model])
    # What of it wager must know or adds to; the rest stays as vLLM read it.
    known = {key: getattr(parsed, key) for key in KNOWN if getattr(parsed, key, None) != getattr(plain, key, None)}
    made = arguments(model, settings, known)
    ours: list[str] = []
    for key, value in made.items():
        setattr(parsed, "model_tag" if key == "model" else key, value)
        if key != "model" and value != known.get(key):
            words = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
            ours += ["--" + key.replace("_", "-"), *map(str, words)]
    if made["model"] != model and not parsed.served_model_name:
        parsed.served_model_name = [model]
        ours += ["--served-model-name", model]
    return parsed, [made["model"], *given, *ours]


def _check(parsed: Namespace) -> list[str]:
    """Let vLLM build its configuration before any process starts or weight is read: it refuses here what it refuses."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    from wager.vllm.launch import idle_overhead

    try:
        with compat.quiet():  # vLLM logs all of it again when it starts
            given = copy(parsed)
            given.model = given.model_tag
            engine = AsyncEngineArgs.from_cli_args(given)
            speculating = engine.create_engine_config()
            engine.speculative_config, engine.scheduler_cls = None, None
            plain = engine.create_engine_config()
    except Exception as error:  # vLLM refuses with errors of many kinds, some in a validator's frame
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        framed = (line.partition("error, ")[2].partition(" [type=")[0] for line in lines if "error, " in line)
        raise ValueError(f"vLLM refuses this: {next(framed, lines[0])}") from error
    if speculating.parallel_config.data_parallel_size > 1 and speculating.model_config.is_moe:
        raise ValueError("data-parallel ranks that share experts must run in step, and wager's do not")
    return idle_overhead(plain, speculating)


def _named_port(given: list[str]) -> Namespace | None:
    """The address as far as it can be read before vLLM, whose import takes seconds; None: vLLM's parser has to say."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--uds")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--config")
    try:
        found = parser.parse_known_args(given)[0]
    except (ArgumentError, SystemExit):
        return None
    return None if found.config else found


def _check_port(parsed: Namespace) -> None:
    """Refuse an address that cannot be listened on, before a model is loaded."""
    if parsed.uds or parsed.headless or not parsed.port:
        return
    family = socket.AF_INET6 if ":" in (parsed.host or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does
        try:
            listener.bind((parsed.host or "", parsed.port))
        except OSError as error:
            where = f"port {parsed.port}" + (f" of {parsed.host}" if parsed.host else "")
            raise ValueError(f"cannot serve on {where}: {error.strerror}; choose another with --port") from None
