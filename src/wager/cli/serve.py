"""`wager serve`: stock `vllm serve` with speculation that adapts."""

import errno
import json
import os
import shlex
import socket
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, ClassVar

import typer

from wager.cli.parameters import argument, opt, option, options
from wager.models.resolve import check_name
from wager.policies.base import require
from wager.policies.registry import parse
from wager.vllm import compat, known_arguments
from wager.vllm.launch import arguments, idle_overhead, on_cpu
from wager.vllm.placement import in_speculator
from wager.vllm.settings import DRAFTERS, MAX_LENGTH, POLICY, Settings

_KEEP = "Keeping and watching"
_DRAFTERS = """Drafters; repeat it or separate with commas. Side by side: prompt-lookup, suffix, retrieval=PATH. Run by
vLLM, one of them: ngram, draft-model=MODEL, eagle=MODEL, eagle3=MODEL, eagle:NAME, eagle3:NAME, draft:NAME (trained
for it)."""

UNCHECKED = "vLLM's own arguments were not checked; --check does, and shows what speculation costs while it is off"
CHECKED = "vLLM accepts this configuration; no weights were read and no server was started"
COMPILES = "the first start takes minutes on a CPU, because vLLM compiles; with --enforce-eager it does not"
IMPORTED = "importing vLLM takes a while, in which nothing is printed"


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
        for name, path in (("--state", self.state), ("--control", self.control)):
            folder = Path(path).resolve().parent
            require(not path or folder.is_dir(), f"cannot use {name} {path}: no folder {folder}")
        require(
            not (self.control and Path(self.control).is_dir()), f"--control is a file, and {self.control} is a folder"
        )
        matching = in_speculator(names, on_cpu=on_cpu(), budget=self.budget)
        own = (self.max_length, self.policy, self.budget, self.uniform, self.policy_seed, self.state, self.control)
        return Settings(names, *own, self.log_seconds, matching)


@options
def command(
    context: typer.Context,
    model: Annotated[str, argument("smollm2-135m (fetched once), a folder, or a Hugging Face id.")],
    speculation: Speculation,
    dry_run: Annotated[
        bool, option("Show what vLLM would be started with, and stop.", "--dry-run", panel=_KEEP)
    ] = False,
    check: Annotated[
        bool, option("The same, with vLLM's own check of it, and what speculation changes.", "--check", panel=_KEEP)
    ] = False,
) -> None:
    """Serve a model with the OpenAI API: stock vLLM, with speculation that adapts.

    Every other argument is one of vllm serve, for example --port 8000 --max-model-len 4096; python -m
    vllm.entrypoints.openai.api_server --help=all lists them. With a --speculative-config of your own (MTP, EAGLE-3, …)
    its draft length adapts, up to its num_speculative_tokens. On a CPU the model runs in float32 unless --dtype says
    otherwise, and smollm2-135m with a KV cache of 2 GiB unless --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE does.

    Metrics are on the server's /metrics; wager top URL shows them live. A request limits its own drafts with extra_body
    {"vllm_xargs": {"wager_max_length": 0}}.
    """
    require(not model.startswith("-"), f"name the model first, as in wager serve smollm2-135m {model} …")
    compat.check_version()
    check_name(model)
    known_arguments.check(context.args)
    found = known_arguments.read(context.args)
    if found is not None:
        _check_address(found, listen=not (dry_run or check))
    settings = speculation.settings()
    if dry_run and not check and found is not None:
        made = arguments(model, settings, known_arguments.known(found))
        _, words = _added(model, made, known_arguments.known(found), found.served_model_name)
        _show(_command(made["model"], context.args, words), [UNCHECKED])
        return
    said = _summary(model, settings, context.args, found)
    _say(f"checking {said}; {IMPORTED}" if check or dry_run else f"starting {said}; {_start_takes(context.args)}")
    with tempfile.TemporaryDirectory(prefix="wager-metrics-") as folder:
        # vLLM's /metrics collects from every process that writes into this folder: the one that decides is not the
        # server. Whoever imports prometheus_client before this is set keeps its numbers to itself.
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        parsed, words = _configure(model, settings, context.args)
        _check_address(parsed, listen=not (dry_run or check))  # before vLLM's configuration, which takes long
        if dry_run and not check:
            _show(words, [UNCHECKED])
            return
        overhead = _check(parsed)
        if check:
            _show(
                words,
                [
                    CHECKED,
                    *(overhead or ["while nothing is drafted, this engine runs as it would without speculation"]),
                ],
            )
            return
        for sentence in overhead:
            _say(sentence)
        from wager.vllm.server import end_when_interrupted, run

        if on_cpu():
            end_when_interrupted(lambda: rmtree(folder, ignore_errors=True))
        run(parsed)


def _say(sentence: str) -> None:
    print(f"wager: {sentence}", file=sys.stderr, flush=True)


def _summary(model: str, settings: Settings, given: list[str], found: Namespace | None) -> str:
    """What is started: vLLM says nothing for the many seconds that importing it takes."""
    own = (found.speculative_config or {}).get("method") if found is not None else None
    if found is None and any(known_arguments.is_about(word, "speculative_config") for word in given):
        own = "as --speculative-config says"
    drafters = str(own) if own else ", ".join(settings.names)
    return f"vLLM {compat.installed_version()} with {model}; drafters: {drafters}; policy: {settings.policy}"


def _start_takes(given: list[str]) -> str:
    eager = any(known_arguments.is_about(word, "enforce_eager") for word in given)
    return f"{IMPORTED}; {COMPILES}" if on_cpu() and not eager else IMPORTED


def _configure(model: str, settings: Settings, given: list[str]) -> tuple[Namespace, list[str]]:
    """What vLLM is to be started with, and what that looks like on a command line."""
    from wager.vllm.server import parse_arguments

    parsed, plain = parse_arguments([model, *given]), parse_arguments([model])
    # What of it wager must know or adds to; the rest stays as vLLM read it.
    names = known_arguments.KNOWN
    known = {key: getattr(parsed, key) for key in names if getattr(parsed, key, None) != getattr(plain, key, None)}
    made = arguments(model, settings, known)
    parsed.served_model_name, words = _added(model, made, known, parsed.served_model_name)
    for key, value in made.items():
        setattr(parsed, "model_tag" if key == "model" else key, value)
    return parsed, _command(made["model"], given, words)


def _added(
    model: str, made: Mapping[str, Any], known: Mapping[str, Any], served: list[str] | None
) -> tuple[list[str] | None, list[str]]:
    """The name to serve under, and what wager adds to a command line with the ``known`` arguments."""
    words: list[str] = []
    for key, value in made.items():
        if key != "model" and value != known.get(key):
            values = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
            words += ["--" + key.replace("_", "-"), *map(str, values)]
    if made["model"] != model and not served:
        return [model], [*words, "--served-model-name", model]
    return served, words


def _command(model: str, given: list[str], words: list[str]) -> list[str]:
    """The whole command line; what wager added contains what was given for the same argument."""
    rest, skip = [], False
    added = [word[2:].replace("-", "_") for word in words if word.startswith("--")]
    for word in given:
        if not skip and any(known_arguments.is_about(word, name) for name in added):
            skip = "=" not in word  # its value is the next word
            continue
        if not skip:
            rest.append(word)
        skip = False
    return [model, *rest, *words]


def _show(words: list[str], remarks: list[str]) -> None:
    print(shlex.join([*compat.serve_command(), *words]))
    print("\n".join(remarks))


def _check(parsed: Namespace) -> list[str]:
    """Let vLLM build its configuration before any process starts or weight is read: it refuses here what it refuses."""
    from vllm.engine.arg_utils import AsyncEngineArgs

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


def _check_address(parsed: Namespace, *, listen: bool) -> None:
    """Refuse an address that cannot be one, or (``listen``) that cannot be listened on, before a model is loaded."""
    if parsed.uds or parsed.headless:
        return
    require(1 <= parsed.port <= 65535, f"--port is a number from 1 to 65535, not {parsed.port}")
    if not listen:
        return
    family = socket.AF_INET6 if ":" in (parsed.host or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does
        try:
            listener.bind((parsed.host or "", parsed.port))
        except UnicodeError:
            raise ValueError(f"--host {parsed.host} is not the name of a host") from None
        except OSError as error:
            where = f"port {parsed.port}" + (f" of {parsed.host}" if parsed.host else "")
            unknown = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            other = "--host is an address of this machine" if unknown else "choose another with --port"
            raise ValueError(f"cannot serve on {where}: {error.strerror}; {other}") from None
