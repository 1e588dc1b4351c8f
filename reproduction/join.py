"""`python -m reproduction.join OUT PART PART …`: parts of a recording, made task by task, as one recording."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from wager.core.provenance import provenance
from wager.core.recording import RecordingWriter, Text, read

SAME = ("model", "drafters", "longest", "max_tokens", "temperature", "prompts", "part", "dtype", "device")


def joined(parts: Sequence[tuple[dict[str, Any], list[Text]]]) -> tuple[dict[str, Any], list[Text]]:
    """One header, with the commands and commits of all parts, and the texts of all; ValueError where parts differ."""
    metas = [meta for meta, _ in parts]
    for field in SAME:
        values = {str(meta.get(field)) for meta in metas}
        if len(values) > 1:
            raise ValueError(f"the parts differ in {field}: {' and '.join(sorted(values))}")
    labels = [{text.label for text in texts} for _, texts in parts]
    for i, own in enumerate(labels):
        if twice := own & set().union(*labels[:i]):
            raise ValueError(f"two parts hold texts of {sorted(twice)[0]}")
    made = [{"command": meta.get("command"), "commit": meta.get("commit"), "date": meta.get("date")} for meta in metas]
    head = {**metas[0], **provenance("python -m reproduction.join"), "parts": made}
    return head, [text for _, texts in parts for text in texts]


def main(words: Sequence[str]) -> None:
    """Join the recordings named after the first word into that one."""
    if len(words) < 2:
        raise ValueError("python -m reproduction.join OUT PART PART …")
    out, *paths = map(Path, words)
    head, texts = joined([read(path) for path in paths])
    with closing(RecordingWriter(out, head)) as writer:
        for text in texts:
            writer.write(text)
    print(f"{out}: {len(texts)} texts, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        print(f"join: {error}", file=sys.stderr)
        sys.exit(2)
