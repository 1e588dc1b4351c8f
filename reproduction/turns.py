"""Serving on one GPU: engines that are loaded together and measured by turns.

python -m reproduction.turns default heads --prompts FILE --out FILE

Every engine is a process of its own with vLLM in it; all load at the same time, then take turns of less than a second,
back and forth, so that what the machine does in the meantime meets all of them alike. In a turn there is always the
same number of requests; one that is finished is replaced. Everything is counted, prefill included, and what earlier
turns wrote is forgotten. The prompts are token ids by kind, {"chat": [[…], …], "copy": [[…], …]}: questions of Alpaca,
and pieces of XSum followed by their first words. Where there is no such file it is made from WAGER_DATA.

default: SmolLM2 without speculation (twice), with wager's default, with a head, and with both in one engine. At the end
all of them run at once, with lengths at random in every step while batches grow and shrink.
heads: the shape of Llama 3 8B with random weights and a random EAGLE head, whose drafts are accepted with given
probabilities (vLLM's synthetic acceptance): well, fairly and badly trained.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reproduction.turn_engine import BATCHES, ENGINES, PROFILES, make_model, make_prompts, serve
from wager.core.provenance import provenance


def orders(plan: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Every turn: which engine, which policy, what load."""
    policies: dict[str, tuple[str, ...]] = {
        name: ("auto",) if drafters else ("none",) for name, (drafters, *_) in ENGINES[plan].items()
    }
    lengths = ("off", "1", "2", "4", "auto")
    with_lengths = dict.fromkeys(PROFILES, lengths) if plan == "heads" else {"matching": ("off", "auto")}
    policies |= {name: choices for name, choices in with_lengths.items() if name in policies}
    turns: list[dict[str, Any]] = []
    for kind in ("chat",) if plan == "heads" else ("chat", "copy"):
        for batch in BATCHES:
            load = {"plan": plan, "seconds": seconds, "kind": kind, "batch": batch}
            for turn in range(-1, rounds):  # the first is not counted: the policy meets this load
                own = [
                    {**load, "engine": name, "policy": policy, "turn": turn}
                    for name, choices in policies.items()
                    for policy in choices
                ]
                turns += own if turn % 2 else own[::-1]
    return turns


def summary(plan: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens a second of every engine and policy over those of the plain engines in the same round of turns.

    full_speed: over the turns alone at whose start and end the processor was about as fast as it ever was, medians of
    both; None where there are no such turns.
    """
    rows = [{**row, "rate": row["tokens"] / row["took"]} for row in rows if row["plan"] == plan and row["batch"]]
    fastest = min((ms for row in rows for ms in row["processor_ms"]), default=0.0)
    plain: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in (row for row in rows if row["turn"] >= 0):
        load, name = (row["kind"], row["batch"]), row["engine"].removesuffix(" again")
        if row["policy"] == "none":
            plain.setdefault(load, []).append(row)
        cells.setdefault((*load, name, row["policy"]), []).append(row)

    def at_full_speed(own: list[dict[str, Any]]) -> list[float]:
        return [row["rate"] for row in own if max(row["processor_ms"]) < 1.3 * fastest]

    made = []
    for (kind, batch, name, policy), own in cells.items():
        beside = plain.get((kind, batch), [])
        by_turn = {row["turn"]: [other["rate"] for other in beside if other["turn"] == row["turn"]] for row in own}
        ratios = sorted(row["rate"] / statistics.fmean(by_turn[row["turn"]]) for row in own if by_turn[row["turn"]])
        if not ratios:  # so far: the round is not over
            continue
        fast, plain_fast = at_full_speed(own), at_full_speed(beside)
        made.append({
            "plan": plan, "kind": kind, "batch": batch, "engine": name, "policy": policy, "turns": len(own),
            "ratio": statistics.median(ratios), "least": ratios[0], "most": ratios[-1],
            "full_speed": statistics.median(fast) / statistics.median(plain_fast) if fast and plain_fast else None,
            "full_speed_turns": (len(fast), len(plain_fast)),
            "step_ms": statistics.median(row["step_ms"] for row in own),
            "tokens_a_step": statistics.median(row["tokens"] / row["steps"] / batch for row in own),
            "slowest_ms": max(row["slowest_ms"] for row in own),
        })  # fmt: skip
    return made


def write(path: Path, plans: list[str], rows: list[dict[str, Any]], gpu: str) -> None:
    """The result so far, as JSON."""
    table = [row for plan in plans for row in summary(plan, rows)]
    said = {"kind": "turns", **provenance("python -m reproduction.turns"), "gpu": gpu, "summary": table, "turns": rows}
    path.write_text(json.dumps(said, indent=1) + "\n")


def load(plans: list[str], prompts: Path, folder: Path) -> tuple[dict[tuple[str, str], subprocess.Popen[str]], str]:
    """Start every engine of the plans, and wait until all are loaded; with the name of the GPU."""
    engines, began, gpu = {}, time.time(), ""
    for plan, name in [(which, name) for which in plans for name in ENGINES[which]]:
        words = ["reproduction.turns", plan, "--prompts", str(prompts), "--engine", name, str(folder)]
        log, env = (folder / f"{plan} {name}.log").open("w"), {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        engines[plan, name] = subprocess.Popen([sys.executable, "-m", *words], stderr=log, env=env, **pipes)
    for (plan, name), engine in engines.items():
        gpu = answer(engine, folder / f"{plan} {name}.log", f"starting {name}")["gpu"]
    print(f"{len(engines)} engines loaded in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    return engines, gpu


def answer(engine: subprocess.Popen[str], log: Path, what: str) -> dict[str, Any]:
    """An engine's next line; where there is none, what it said last ends this."""
    line = engine.stdout.readline() if engine.stdout else ""
    if not line:
        sys.exit(f"{what} ended it:\n" + log.read_text()[-3000:])
    said: dict[str, Any] = json.loads(line)
    return said


def main() -> None:
    """Load all engines, give them their turns, write and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=ENGINES, nargs="+")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=0.7, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="ENGINE", help="some of the engines")
    parser.add_argument("--stress", type=float, default=60.0, help="seconds with lengths at random, at the end")
    parser.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)  # name and folder: this process is that engine
    given = parser.parse_args()
    if given.engine:
        serve(given.plan[0], given.engine[0], given.prompts, Path(given.engine[1]))
    for plan in given.plan:
        for name in [name for name in ENGINES[plan] if given.only and name not in given.only]:
            del ENGINES[plan][name]
    folder = Path(tempfile.mkdtemp(prefix="turns-"))
    if not given.prompts.exists():
        make_prompts(given.prompts)
    if "heads" in given.plan:
        for head in (False, True):
            make_model(folder, head=head)
    engines, gpu = load(given.plan, given.prompts, folder)
    rows: list[dict[str, Any]] = []
    one_by_one = [[order] for plan in given.plan for order in orders(plan, given.seconds, given.rounds)]
    at_random = {"policy": "random", "kind": "chat", "batch": 0, "turn": 0, "seconds": given.stress}
    together = [{**at_random, "plan": plan, "engine": name} for plan, name in engines if ENGINES[plan][name][0]]
    for group in (*one_by_one, together):
        for order in group:
            print(json.dumps(order), file=engines[order["plan"], order["engine"]].stdin, flush=True)
        for order in group:
            plan, name = order["plan"], order["engine"]
            rows.append(answer(engines[plan, name], folder / f"{plan} {name}.log", str(order)))
        if given.out and len(rows) % 50 == 0:
            write(given.out, given.plan, rows, gpu)
    for engine in engines.values():
        engine.kill()
    if given.out:
        write(given.out, given.plan, rows, gpu)
    for row in (row for plan in given.plan for row in summary(plan, rows)):
        full = f"{row['full_speed']:.2f}x" if row["full_speed"] else "-"
        spread = f"{row['ratio']:6.2f}x [{row['least']:.2f}, {row['most']:.2f}] {full:>6}"
        what = f"{row['kind']:5}{row['batch']:4}  {row['engine']:18}{row['policy']:7}"
        print(f"{what}{spread}  {row['step_ms']:6.2f} ms  {row['tokens_a_step']:5.2f} tokens")
    for row in rows:
        if not row["batch"]:
            print(f"{row['engine']}: {row['steps']} steps of random length, slowest {row['slowest_ms']:.0f} ms")


if __name__ == "__main__":
    main()
