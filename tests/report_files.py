"""Files as a report reads them, made up: a run, a trace and a text, small and always the same."""

import json
import random
import re
from html import unescape
from pathlib import Path
from typing import Any

from wager.bench.summary import Answer, summarize
from wager.core import Arm, Round, TraceWriter
from wager.core.trace import Request

RESULTS = Path(__file__).parents[1] / "results"
KEPT = (
    "serving-auto-cpu.json", "serving-cpu.json", "drafters-cpu.json", "engine-cpu.json", "engine-h200.json",
    "regret.json", "regret-auto.json", "load-switches.json", "spec-h200.json", "eagle-cpu.json", "generate-cpu.json",
    "replay-cpu.json", "phases.json", "ablations-h200.json", "serving-default-h200.json",
    "serving-8b-adaptive-h200.json", "serving-8b-h200.json", "serving-8b-peers-h200.json", "serving-small-h200.json",
    "serving-sampled-h200.json", "serving-texts-h200.json",
)  # fmt: skip
ARMS = ["off", "suffix:4", "suffix:8", "prompt-lookup:4"]
METHODS = [
    {"name": "transformers", "kind": "plain"},
    {"name": "transformers prompt lookup", "kind": "peer"},
    {"name": "off", "kind": "off"},
    *({"name": arm, "kind": "arm"} for arm in ARMS[1:]),
    {"name": "auto", "kind": "policy"},
    {"name": "ucbspec", "kind": "policy"},
]
WORDS = [" the", " sea", " was", " calm", ",", " and", " harbour", " lay", " quiet", " in", " early", " light", ".\n"]
ONE = 0.02  # seconds of a verification of one token


def a_run(tasks: tuple[str, ...] = ("qa", "rag", "summarization"), each: int = 3, seed: int = 0) -> dict[str, Any]:
    """A complete run: every method on every prompt."""
    draw = random.Random(seed)
    prompts = [{"id": f"{task}-{i}", "task": task, "tokens": 40 + i} for task in tasks for i in range(each)]
    answers = [_answer(draw, prompt, method) for prompt in prompts for method in METHODS]
    known = {}
    for a in answers:
        spent = (a["seconds"], a["forwards"], (), 0.0, a["prefill_seconds"])
        known[a["prompt"], a["method"]] = Answer([0] * a["tokens"], *spent)
    return {
        "format": "wager-run", "version": 1, "command": "wager bench --suite quick --out made-up", "date": "2026-11-15",
        "machine": "x86_64, 2 cores", "versions": {"wager": "0.1.0"}, "suite": "quick", "model": "smollm2-135m",
        "device": "CPU, 2 threads", "dtype": "float32", "seed": 0, "max_tokens": 32, "complete": True,
        "methods": METHODS, "prompts": prompts, "arms": ARMS, "answers": answers,
        "summary": summarize(METHODS, prompts, known),
        "verdict": ["On this machine `auto` is faster than plain decoding.", "Take `auto`: nothing has to be set."],
    }  # fmt: skip


def _answer(draw: random.Random, prompt: dict[str, Any], method: dict[str, str]) -> dict[str, Any]:
    name, kind = method["name"], method["kind"]
    rounds: list[list[float]] = []
    pieces: list[Any] = [["off", [["The", "plain"]], []]]
    made = 1
    while made < 32:
        arm = draw.choice(ARMS) if kind == "policy" else name if kind == "arm" else "off"
        depth = Arm.parse(arm).length
        drafted = draw.randint(0, depth)
        accepted = 0
        while accepted < drafted and draw.random() < 0.6:
            accepted += 1
        emitted = min(accepted + 1, 32 - made)
        accepted = min(accepted, emitted)
        made += emitted
        verify = ONE * (1 + 0.15 * drafted) * draw.uniform(0.9, 1.1)
        rounds.append([ARMS.index(arm), drafted, accepted, emitted, round(1e-4 * drafted, 6), round(verify, 6)])
        own = "bonus" if drafted else "plain"
        sources = [Arm.parse(arm).drafter] * accepted + [own] * (emitted - accepted)
        rejected = [draw.choice(WORDS) for _ in range(drafted - accepted)]
        pieces.append([arm, [[draw.choice(WORDS), who] for who in sources], rejected])
    slow = 1.4 if kind in ("plain", "peer") else 1.0
    seconds = 0.05 + slow * sum(r[4] + r[5] for r in rounds)
    answer = {
        "prompt": prompt["id"], "method": name, "tokens": 32, "seconds": round(seconds, 6), "prefill_seconds": 0.05,
        "forwards": 1 + len(rounds), "rounds": rounds if kind in ("off", "arm", "policy") else [], "same": True,
    }  # fmt: skip
    if kind == "policy" and prompt["id"].endswith("-0"):
        answer["pieces"] = pieces
    return answer


def rounds_of(count: int, seed: int = 0, batches: tuple[int, ...] = (1,)) -> list[Round]:
    """Rounds as an engine would give them."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        arm, batch = Arm.parse(draw.choice([*ARMS, "suffix:4@2x8"])), draw.choice(batches)
        drafted = draw.randint(0, arm.budget) * batch if arm.length else 0
        accepted = min(draw.randint(0, drafted), arm.length * batch)
        seconds = 0.01 * (1 + drafted / 8) * draw.random()
        found.append(Round(arm, drafted, accepted, accepted + 1, batch=batch, verify_seconds=seconds))
    return found


def write_trace(path: Path, rounds: list[Round], labels: tuple[str, ...] = ("qa",)) -> Path:
    """A finished trace."""
    meta = {"command": "wager generate hello --trace made-up.trace", "date": "2026-11-15", "policy": "auto"}
    with TraceWriter(path, meta) as trace:
        share = -(-len(rounds) // len(labels))
        for i, label in enumerate(labels):
            trace.write(Request(label))
            for one in rounds[i * share : (i + 1) * share]:
                trace.write(one)
    return path


def a_text() -> dict[str, Any]:
    """What `wager generate --json` prints."""
    steps = [
        ["off", [["Say", "plain"]], []],
        ["suffix:4", [[" the", "suffix"], [" sea", "suffix"], [" <b>was</b>", "bonus"]], [" & calm"]],
        ["off", [["\n", "plain"]], []],
    ]
    tokens = [one for _, own, _ in steps for one in own]
    summary = {
        "tokens": len(tokens), "prompt_tokens": 9, "finish": "length", "rounds": 2, "tokens_per_second": 31.5,
        "mat": 2.0, "prefill_seconds": 0.1, "decode_seconds": 0.2, "arms": {"suffix:4": 0.5, "off": 0.5},
    }  # fmt: skip
    return {
        "command": "wager generate Say --json", "date": "2026-11-15", "machine": "x86_64", "policy": "auto",
        "text": "".join(text for text, _ in tokens), "tokens": list(range(len(tokens))),
        "sources": [who for _, who in tokens], "summary": summary, "explained": None, "compare": None, "pieces": steps,
    }  # fmt: skip


def a_turn(policy: str, batch: int, ratio: float, engine: str = "head", **more: Any) -> dict[str, Any]:
    """A row of the summary of `reproduction.turns`."""
    spread = {"least": round(0.9 * ratio, 6), "most": round(1.2 * ratio, 6)}
    where = {"plan": "heads", "profile": "", "kind": "chat"}
    return {**where, "engine": engine, "policy": policy, "batch": batch, "turns": 3, "ratio": ratio, **spread, **more}


def turns_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `reproduction.turns` writes."""
    return {
        "kind": "turns", "command": "python -m reproduction.turns heads --out made-up.json", "date": "2026-11-17",
        "machine": "x86_64, 16 cores", "gpu": "NVIDIA H200", "ended": {}, "summary": rows, "turns": [],
    }  # fmt: skip


def put(path: Path, held: Any) -> Path:
    """Write JSON."""
    path.write_text(json.dumps(held), encoding="utf-8")
    return path


class Tables:
    """The tables behind a page's figures: figure -> row -> its numbers, None where a cell has none."""

    def __init__(self, page: str) -> None:
        self.of: dict[str, dict[str, list[float | None]]] = {}
        self.columns: dict[str, list[str]] = {}
        for card in re.findall(r"<figure.*?</figure>", page, re.S):
            title = unescape(re.findall(r"<h3[^>]*>(.*?)</h3>", card)[0])
            while title in self.of:
                title += "'"
            table = card.partition('<table class="numbers">')[2]
            self.columns[title] = [unescape(name) for name in re.findall(r'<th scope="col">(.*?)</th>', table)]
            self.of[title] = {}
            for name, cells in re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table, re.S):
                values = re.findall(r'<td(?: data-v="(.*?)")?>', cells)
                self.of[title][unescape(name)] = [float(value) if value else None for value in values]
