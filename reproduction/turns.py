"""Serving on one GPU: engines that are loaded together and measured by turns.

python -m reproduction.turns PLAN [PLAN …] --prompts FILE --out FILE

Three commands measure everything that serving on a GPU is judged by, with three rounds each and 1 to 256 requests:
small: default, texts, sampled and stress with SmolLM2: chats and copying, texts, sampling, stalls and crashes.
large: large-default and adaptive with the 8B shape: the default without matches, off beside a head, every length.
rates: the open loops.

Every engine is a process of its own with vLLM in it; all load at the same time, then take turns of less than a second,
back and forth, so that what the machine does in the meantime meets all of them alike. Several plans load each engine
once. Everything is counted, prefill included, and what earlier turns wrote is forgotten. The prompts are token ids by
kind: questions of Alpaca, and pieces of XSum followed by their first words; with them are arrivals of the Azure trace.
Where there is no such file it is made from WAGER_DATA.

SmolLM2 (load: about two minutes):
default: without speculation (twice), with wager's default, with a head, and with both in one engine.
stock: with a head, beside stock vLLM with the same head (adaptive verification, a table of lengths) and with n-gram.
draft-model: with a small draft model, on and off, beside stock vLLM with the same model.
stress: the engines that speculate at once, with batches that grow and shrink: `auto`, then random lengths.
sampled: many samples of a prompt on each engine, and a test whether they are of one distribution.
texts: greedy texts beside those without speculation, and whether they part at ties.
small-rates: an open loop with a head, as in rates.

The shape of Llama 3 8B with random weights and a random EAGLE head, whose drafts are accepted with given probabilities
(vLLM's synthetic acceptance), well, fairly and badly trained:
heads: no speculation, off, fixed lengths and `auto`.
peers: the same with a fair head, and Nightjar beside what its paper compares it with.
large-default: no speculation, and wager's default where nothing can be matched.
adaptive: the same beside stock vLLM's adaptive verification and its table of lengths, filled with the best of them.
rates: an open loop, Poisson arrivals and the trace, with many policies (a fair head).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from reproduction.turn_models import LLAMA_8B, TINY, make_model, make_prompts
from reproduction.turn_plans import (
    COMPARED,
    ENGINES,
    PLANS,
    PROFILES,
    TOGETHER,
    Extent,
    Order,
    best_lengths,
    grouped,
    most_seconds,
    orders,
)
from reproduction.turn_summary import lines, summary
from wager.core.files import write_text
from wager.core.provenance import provenance

WRITE_EVERY = 15.0  # seconds
LONG = ("texts", "written", "leads")  # what turns report that is not kept
ENGINE = "--engine"  # first argument of the processes started here


class Engines:
    """The processes, by the names of their engines."""

    def __init__(self, names: list[str], prompts: Path, folder: Path, most: int, *, tiny: bool) -> None:
        self.folder, self.gpu, self.dead = folder, "", dict[str, str]()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        env = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        for name in names:
            given = {"name": name, "prompts": str(prompts), "folder": str(folder), "most": most, "tiny": tiny}
            words = [sys.executable, "-m", "reproduction.turns", ENGINE, json.dumps(given)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.processes[name] = subprocess.Popen(words, stderr=self.log(name).open("w"), env=env, **pipes)

    def wait(self) -> None:
        """Until all are loaded; one that fails is left out."""
        began = time.time()
        for name in self.processes:
            said = self._line(name)
            if "error" in said:
                tell(f"{name} did not load:\n{said['error']}")
                continue
            self.gpu = said["gpu"]
            tell(f"{name} loaded after {time.time() - began:.0f} s")

    def log(self, name: str) -> Path:
        """What an engine writes to its standard error."""
        return self.folder / f"{name}.log"

    def run(self, group: list[Order]) -> list[Order]:
        """These turns at the same time; an engine that ends is out, and its turn says why."""
        alive = [order for order in group if order["engine"] not in self.dead]
        for order in alive:
            print(json.dumps(order), file=self.processes[order["engine"]].stdin, flush=True)
        return [{**order, **self._line(order["engine"])} for order in alive]

    def _line(self, name: str) -> dict[str, Any]:
        engine = self.processes[name]
        line = engine.stdout.readline() if engine.stdout else ""
        said: dict[str, Any] = json.loads(line) if line else {"error": self.log(name).read_text()[-2000:]}
        if said.get("error"):
            self.dead[name] = said["error"].strip().splitlines()[-1]
        return said

    def end(self) -> None:
        """Stop all."""
        for engine in self.processes.values():
            engine.kill()


def tell(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def write(path: Path, plans: list[str], rows: list[Order], engines: Engines) -> None:
    """The result so far, as JSON, without the texts."""
    table = [row for plan in plans for row in summary(plan, rows)]
    turns = [{key: value for key, value in row.items() if key not in LONG} for row in rows]
    said = {"kind": "turns", **provenance("python -m reproduction.turns"), "gpu": engines.gpu, "ended": engines.dead}
    write_text(path, json.dumps({**said, "summary": table, "turns": turns}, indent=1) + "\n")


def arguments() -> argparse.ArgumentParser:
    """The options of this command."""
    took = {plan: most_seconds(orders(plan, Extent())) for plan in PLANS}
    took |= {name: sum(took[plan] for plan in plans) for name, plans in TOGETHER.items()}
    note = "seconds at most after loading (2 to 4 minutes): " + ", ".join(f"{name} {t:.0f}" for name, t in took.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=note, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", choices=[*TOGETHER, *PLANS], nargs="+")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--out", type=Path)
    own = Extent()
    parser.add_argument("--seconds", type=float, help="of a turn with a closed load")
    parser.add_argument("--rounds", type=int, help="that are counted")
    parser.add_argument("--window", type=float, default=own.window, help="seconds of arrivals in an open load")
    parser.add_argument("--stress", type=float, default=own.stress, help="seconds with random lengths, at most")
    parser.add_argument("--batches", type=int, nargs="+", default=own.batches, help="requests of the closed loads")
    parser.add_argument("--kinds", nargs="+", default=own.kinds, choices=own.kinds, help="of prompts, SmolLM2's loads")
    parser.add_argument("--rates", type=float, nargs="+", default=own.rates, help="requests a second of the open ones")
    parser.add_argument("--policies", nargs="+", default=COMPARED, help="under the open loads")
    parser.add_argument("--profiles", nargs="+", default=own.profiles, choices=PROFILES, help="of heads and adaptive")
    parser.add_argument("--steps", type=int, default=own.steps, help="of random length, over all engines")
    parser.add_argument("--requests", type=int, default=own.requests, help="of the changing load, over all engines")
    parser.add_argument("--samples", type=int, default=own.samples, help="of a prompt on each engine")
    parser.add_argument("--only", nargs="+", default=(), choices=ENGINES, metavar="ENGINE", help="some of the engines")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: a tiny model in place of the 8B shape")
    parser.add_argument("--dry-run", action="store_true", help="how many turns of how many seconds, and nothing else")
    return parser


def planned(given: argparse.Namespace) -> list[Order]:
    """The turns of all plans."""
    named: dict[str, Any] = {field.name: getattr(given, field.name) for field in fields(Extent)}
    named |= {name: tuple(value) for name, value in named.items() if isinstance(value, list)}
    extent = Extent(**named)
    given.plan = list(dict.fromkeys(plan for name in given.plan for plan in TOGETHER.get(name, (name,))))
    return [order for plan in given.plan for order in orders(plan, extent)]


def main() -> None:
    """Load all engines, give them their turns, write and print what came of it."""
    if sys.argv[1:2] == [ENGINE]:  # this process is that engine
        from reproduction.turn_engine import serve

        serve(json.loads(sys.argv[2]))
    given = arguments().parse_args()
    if not (given.prompts or given.dry_run):
        arguments().error("name the file of prompts with --prompts")
    turns = planned(given)
    names = list(dict.fromkeys(order["engine"] for order in turns))
    groups = grouped(turns)
    most = most_seconds(turns)
    tell(f"{len(turns)} turns on {len(names)} engines ({', '.join(names)}), {most:.0f} s at most after loading")
    if given.dry_run or not turns:
        return
    folder = Path(tempfile.mkdtemp(prefix="turns-"))
    if not given.prompts.exists():
        make_prompts(given.prompts)
    if any(ENGINES[name].large for name in names):
        for head in (False, True):
            make_model(folder, TINY if given.tiny else LLAMA_8B, head=head)
    rows_at_most = max([*given.batches, 8])  # every draft length needs a number of requests of its own
    engines = Engines(names, given.prompts, folder, rows_at_most, tiny=given.tiny)
    rows: list[Order] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit: what there is, is written and shown
    try:
        engines.wait()
        measure(groups, engines, given, rows)
    except KeyboardInterrupt:
        tell("interrupted")
        if given.out:
            write(given.out, given.plan, rows, engines)
    finally:
        engines.end()
    for plan in given.plan:
        for line in lines(plan, summary(plan, rows)):
            print(line)


def measure(groups: list[list[Order]], engines: Engines, given: argparse.Namespace, rows: list[Order]) -> None:
    """Every turn, added to the rows and written down every few seconds."""
    began = written = time.time()
    for number, group in enumerate(groups):
        for order in (order for order in group if order["policy"] == "table"):
            order["table"] = best_lengths(rows, order["profile"])
        made = engines.run(group)
        rows += made
        for row in (row for row in made if row.get("error")):
            tell(f"{row['engine']}: {row['error'].strip().splitlines()[-1]}")
        last = number + 1 == len(groups)
        if last or time.time() - written > WRITE_EVERY:
            written = time.time()
            tell(f"turn {number + 1} of {len(groups)}, {written - began:.0f} s")
            if given.out:
                write(given.out, given.plan, rows, engines)


if __name__ == "__main__":
    main()
