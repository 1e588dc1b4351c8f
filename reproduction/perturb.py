"""Prompts in other words, and long ones: `python -m reproduction.perturb rephrased|long --prompts N` prints them.

The instruction around a question is rephrased, the question itself stays.
"""

import json
import random
import re
import sys

from wager.bench.workloads import Prompt, prompts

OTHER_PROMPTS = ("rephrased", "long")
EACH, WORDS = 6, 220  # sentences a long prompt is made of at most, and the words from which it is long enough

# task -> how its instruction begins, and other ways to say the same
INSTRUCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "translation": (
        r"^Translate (?P<a>\w+) (?:in)?to (?P<b>\w+)(?: the following)?[^:\n]*:\s*",
        (
            "Convert this text from {a} to {b}: ",
            "What does this {a} sentence say in {b}? ",
            "I need the {b} version of these {a} words: ",
        ),
    ),
    "summarization": (
        r"^(?:Summarize|Summarise)(?: this article)?[^:\n]*[:.]\s*",
        (
            "Provide a concise overview of the following text: ",
            "What are the main points here? ",
            "Boil this down to what matters: ",
        ),
    ),
    "humaneval": (
        r"^Complete this Python function\. Write out the whole function\.\s*",
        (
            "Here is the start of a Python function. Finish it and show all of it.\n\n",
            "Please fill in the body of the function below and print it in full.\n\n",
            "The following Python code stops too early; go on until the function is whole.\n\n",
        ),
    ),
    "xsum": (
        r"^Summarize this article in a few sentences\.\s*",
        ("Tell me briefly what this report says.\n\n", "Give the gist of the following news story.\n\n"),
    ),
}
AROUND = (
    ("Could you help me with this? ", ""),
    ("", "\n\nPlease explain as you go."),
    ("Here is something I would like an answer to. ", ""),
    ("", "\n\nTake your time and answer it well."),
    ("A friend asked me this, and I do not know what to say: ", ""),
)


def rephrased(task: str, text: str, seed: int) -> str:
    """The prompt with its instruction in other words; the same seed gives the same words."""
    dice = random.Random(f"{seed} {task}")
    begins, others = INSTRUCTIONS.get(task, ("", ()))
    found = re.match(begins, text, flags=re.IGNORECASE) if others else None
    if found is not None and found.end() > 0:
        return dice.choice(others).format(**found.groupdict()) + text[found.end() :]
    before, after = dice.choice(AROUND)
    return f"{before}{text}{after}"


def lengthened(texts: list[str], words: int) -> str:
    """Several questions of one kind as one long one of about so many words, under the instruction of the first."""
    head, _, first = texts[0].partition(":")
    if not first:
        head, first = "Answer all of this", texts[0]
    joined: list[str] = []
    for text in [first, *(t.partition(":")[2] or t for t in texts[1:])]:
        joined.append(text.strip())
        if sum(len(t.split()) for t in joined) >= words:
            break
    return f"{head}: " + " ".join(joined)


def reworded(count: int) -> list[Prompt]:
    """So many prompts a task of MetaSD's five, rephrased."""
    from reproduction.runs import FIVE

    chosen = prompts(None, tasks=FIVE, count=count, seed=1, part="test")
    return [Prompt(p.task, rephrased(p.task, p.text, i)) for i, p in enumerate(chosen)]


def main(kind: str, count: int) -> None:
    """Print so many prompts a task, rephrased, or translations made long, as JSON lines."""
    if kind == "rephrased":
        made = [(p.task, p.text) for p in reworded(count)]
    else:
        own = [p.text for p in prompts(None, tasks=("translation",), count=EACH * count, seed=1, part="all")]
        groups = [[own[(i + k * count) % len(own)] for k in range(EACH)] for i in range(count)]
        made = [("translation", lengthened(group, WORDS)) for group in groups]
    for task, text in made:
        print(json.dumps({"prompt": text, "task": task}))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in OTHER_PROMPTS or sys.argv[2] != "--prompts":
        sys.exit("python -m reproduction.perturb rephrased|long --prompts N")
    main(sys.argv[1], int(sys.argv[3]))
