"""The first call: seconds from the first import to the first token, loading the model left out, in new processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wager.drafters.shipped import VARIABLE
from wager.models import embedded

PROMPT = "The sea was calm that morning, and the harbour lay quiet in the early light."
PLAIN, FIRST, LATER = "plain transformers", "wager, first use", "wager, later"  # the cache is empty in the second
LONGEST = 900.0  # seconds a process may take
# What each process runs; it prints when the first token and the last one came, in seconds of wall time and of the
# processor, without the time of loading. Both load the model in the same way.
SCRIPT = """
import json, sys
from time import perf_counter, process_time

def now():
    return perf_counter(), process_time()

kind, folder, prompt, count = sys.argv[1:]
began = now()
if kind == "wager":
    import wager
from transformers import AutoModelForCausalLM, AutoTokenizer

loading = now()
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
loaded = now()
came = []


class Streamer:
    def put(self, tokens):
        came.append(now())

    def end(self):
        pass


given = tokenizer(prompt, return_tensors="pt")
how = {"custom_generate": wager.generate} if kind == "wager" else {}
out = model.generate(**given, max_new_tokens=int(count), do_sample=False, streamer=Streamer(), **how)
whole = now()
spent = [[at - b - (d - l) for at, b, l, d in zip(then, began, loading, loaded)] for then in (came[1], whole)]
print(json.dumps({"first": spent[0], "all": spent[1], "tokens": out[0, given.input_ids.shape[1]:].tolist()}))
"""


def measured(folder: str, repeats: int, tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What every process took, after one of each kind that fills the byte code and is not counted; in turn."""
    with TemporaryDirectory() as spare:
        place = Path(spare)
        for kind in (PLAIN, FIRST):
            _process(kind, folder, tokens, place, place / "warm-up")
        for number in range(repeats):
            for kind in (PLAIN, FIRST, LATER):
                yield kind, _process(kind, folder, tokens, place, place / f"cache-{number}")


def processes(repeats: int) -> int:
    """How many ``measured`` gives."""
    return 3 * repeats


def _process(kind: str, folder: str, tokens: int, spare: Path, cache: Path) -> dict[str, Any]:
    """One new process with this cache; what it printed, and the files that wager keeps there."""
    drafters = os.environ.get(VARIABLE) or str(embedded.cache() / "drafters")
    own = {"WAGER_CACHE": str(cache), VARIABLE: drafters, "PYTHONPYCACHEPREFIX": str(spare / "byte-code")}
    environment = {**os.environ, **own, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    script = [sys.executable, "-c", SCRIPT, "plain" if kind == PLAIN else "wager", folder, PROMPT, str(tokens)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise ValueError(f"a process with {kind} ended with code {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "kept": sorted(file.name for file in cache.glob("*.json"))}


def summary(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """For each kind the seconds of its processes, and by how much they are above plain ones of the same turn."""
    of = {kind: [one for name, one in found if name == kind] for kind in (PLAIN, FIRST, LATER)}
    rows = []
    for kind, ran in of.items():
        row: dict[str, Any] = {"kind": kind, "kept": ran[-1]["kept"]}
        for what in ("first", "all"):
            for at, clock in enumerate(("seconds", "cpu_seconds")):
                own = [one[what][at] for one in ran]
                over = [a - b[what][at] for a, b in zip(own, of[PLAIN], strict=True)]
                row[f"{what}_token_{clock}" if what == "first" else f"text_{clock}"] = _spread(own, over)
        rows.append(row)
    return rows


def _spread(own: Sequence[float], over: Sequence[float]) -> dict[str, float]:
    said = {
        "median": statistics.median(own),
        "least": min(own),
        "most": max(own),
        "over_plain": statistics.median(over),
    }
    return {name: round(seconds, 4) for name, seconds in said.items()}
