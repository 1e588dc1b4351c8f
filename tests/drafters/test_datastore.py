"""Datastores: what is built is found again, nothing is half-written, and what is no datastore is refused."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer
from commands import UNDER_WAY
from hypothesis import given
from hypothesis import strategies as st

import wager.models
from wager.cli import datastore as command
from wager.drafters import corpus
from wager.drafters.datastore import DEPTH, HEADER_BYTES, Datastore, fingerprint
from wager.drafters.retrieval import Retrieval

Run = Callable[..., tuple[int, str, str]]


class Letters:
    """A tokenizer: a token is a character's number."""

    def __init__(self, size: int = 256) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(self.size)}

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def make(texts: Sequence[str], path: Path, **how: object) -> Datastore:
    corpus.build(texts, letters, path, **{"vocabulary": 256, **how})  # type: ignore[arg-type]
    return Datastore.open(path)


@pytest.mark.parametrize("width", [2, 4])
@given(st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 65_534]), min_size=1, max_size=40), min_size=1, max_size=5))
def test_suffixes_are_sorted_as_their_bytes_are(width: int, documents: list[list[int]]) -> None:
    separator = 0xFFFF if width == 2 else 0xFFFFFFFF
    cells = corpus.backwards([np.array(d, dtype=np.uint32) for d in documents], separator)
    order = corpus.suffix_order(cells, width).tolist()
    raw = cells.astype(f">u{width}").tobytes()
    keys = [raw[i * width : (i + DEPTH) * width] for i in order]
    assert keys == sorted(keys)
    assert sorted(order) == [i for i, cell in enumerate(cells.tolist()) if cell != separator]


def test_a_million_tokens_are_sorted_and_the_progress_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.zipf(1.3, 500_000) % 40_000
    shares: list[float] = []
    told = {"vocabulary": 40_000, "report": shares.append}
    assert corpus.build(["a", "b"], lambda _: tokens.tolist(), tmp_path / "a", **told).tokens == 1_000_000
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@given(st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=5), st.text("abc", max_size=20))
def test_span_holds_all_longest_matches(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], context: str
) -> None:
    store = make(texts, tmp_path_factory.getbasetemp() / "spans")
    at, match = store.find(store.key(letters(context)))
    ends = [context[len(context) - n :] for n in range(1, min(DEPTH, len(context)) + 1)]
    assert match == max((len(end) for end in ends if any(end in text for text in texts)), default=0)
    for shorter in range(1, match + 1):
        low, high = store.span(store.key(letters(context))[: shorter * 2], at)
        piece = context[len(context) - shorter :]
        assert high - low == sum(text[i:].startswith(piece) for text in texts for i in range(len(text)))
    store.close()


def test_a_datastore_says_what_it_is(tmp_path: Path) -> None:
    store = make(["hello", "", "world!"], tmp_path / "a", model="tiny", fingerprint="f00")
    assert (store.header.tokens, store.header.documents, store.header.model) == (11, 2, "tiny")
    store.check("f00")
    with pytest.raises(ValueError, match=r"made with another tokenizer of tiny \(f00, not bar\)"):
        store.check("bar")
    assert fingerprint(Letters(9)) == fingerprint(Letters(9)) != fingerprint(Letters(10))
    with pytest.raises(ValueError, match="too long: 5000 characters"):
        replace(store.header, model="x" * 5000).encode()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda raw: raw[:-1], "has .* bytes, not"),
        (lambda raw: raw[: HEADER_BYTES + 4], "has .* bytes, not"),
        (lambda raw: raw + b"x", "has .* bytes, not"),
        (lambda raw: raw[:100], "is not a wager datastore"),
        (lambda raw: b"", "is not a wager datastore"),
        (lambda raw: bytes(range(256)) * 40, "is not a wager datastore"),
        (lambda raw: b'{"format": "other"}'.ljust(HEADER_BYTES) + raw[HEADER_BYTES:], "is not a wager datastore"),
        (lambda raw: raw.replace(b'"version": 1', b'"version": 9'), "version 9, this wager reads 1"),
        (lambda raw: raw.replace(b'"width": 2', b'"width": "2"'), "damaged"),
        (lambda raw: raw.replace(b'"width": 2', b'"width": 3'), "does not fit"),
        (lambda raw: raw.replace(b'"tokens"', b'"broken"'), "damaged"),
        (lambda raw: raw.replace(sys.byteorder.encode(), b"?" * len(sys.byteorder)), "does not fit"),
    ],
)
def test_a_spoilt_file_is_refused_in_one_sentence(tmp_path: Path, spoil: Callable[[bytes], bytes], says: str) -> None:
    path = tmp_path / "a"
    make(["hello world"], path).close()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=says) as error:
        Datastore.open(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_failed_build_leaves_the_old_datastore_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    make(["hello"], path).close()
    before = path.read_bytes()

    def interrupted(share: float) -> None:
        raise KeyboardInterrupt

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt):
        corpus.build(["other"], letters, path, vocabulary=256, report=interrupted)
    with pytest.raises(ValueError, match="gave token 233, which is not below the vocabulary of 200"):
        corpus.build(["é"], letters, path, vocabulary=200)
    with pytest.raises(ValueError, match="nothing in these files"):
        corpus.build(["", ""], letters, path, vocabulary=200)
    monkeypatch.setattr("wager.core.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        corpus.build(["hello"], letters, path, vocabulary=256)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_documents_are_texts_and_records(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("one\n\ntwo\n")
    lines.write_text('{"q": "x", "turns": ["y", {"z": "w"}], "n": 3}\n\n{"q": "v"}\n')
    shares: list[float] = []
    assert list(corpus.documents([text, lines], report=shares.append)) == ["one\n\ntwo\n", "x\ny\nw", "v"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert list(corpus.documents([lines], field="q")) == ["x", "v"]


def test_a_long_text_is_cut_at_blank_lines_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some words here\n\n" * 20_000)
    pieces = list(corpus.documents([path]))
    assert len(pieces) > 1
    assert "".join(pieces) == path.read_text()
    assert all(piece.endswith("\n\n") for piece in pieces)


@pytest.fixture
def run(cli: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process, with a tokenizer of letters, in an empty folder."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.add_typer(command.app, name="datastore")
    monkeypatch.setattr("wager.cli.app.app", app)
    monkeypatch.setattr(wager.models, "load_tokenizer", lambda name: Letters())
    return partial(cli, "datastore")


def test_build_then_show_then_draft(run: Run, tmp_path: Path) -> None:
    Path("a.txt").write_text("the cat sat on the mat")
    Path("b.jsonl").write_text('{"text": "the dog sat on the log", "id": "17"}\n')
    code, out, _ = run("build", "a.txt", "b.jsonl", "--out", "my.store", "--field", "text")
    assert (code, "44 tokens of 2 documents" in out) == (0, True)
    code, out, _ = run("show", "my.store")
    assert (code, "smollm2-135m" in out) == (0, True)
    about = json.loads(run("show", "my.store", "--json")[1])
    assert (about["tokens"], about["vocabulary"], about["fingerprint"]) == (44, 256, fingerprint(Letters()))
    assert about["bytes"] == Path("my.store").stat().st_size
    drafter = Retrieval("my.store")
    drafter.begin(letters("a mouse sat o"))
    assert "".join(map(chr, drafter.propose(6).tokens)) == "n the "
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.jsonl", "my.store"]
    assert "22 tokens of 1 document, " in run("build", "a.txt", "--out", "one.store")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("build", "missing.txt", "--out", "o"), "no file missing.txt"),
        (("build", "missing", "--out", "o"), "no file missing"),
        (("build", "data.csv", "--out", "o"), "cannot read data.csv: a corpus is made of .txt, .md, .jsonl files"),
        (("build", "empty.txt", "--out", "o"), "nothing in these files"),
        (("build", "latin.txt", "--out", "o"), "latin.txt is not text in UTF-8"),
        (("build", "odd.jsonl", "--out", "o"), "line 2 of odd.jsonl is not JSON"),
        (("build", "good.jsonl", "--field", "text", "--out", "o"), "good.jsonl has no field 'text'; it has q"),
        (("build", "list.jsonl", "--field", "text", "--out", "o"), "it has no fields at all"),
        (("build", "snow.txt", "--out", "o"), "gave token 9731, which is not below the vocabulary of 256"),
        (("build", "good.txt", "--out", "nowhere/o"), "cannot write"),
        (("build", "good.txt", "--out", "."), ". exists; a datastore is never overwritten"),
        (("build", "good.txt", "--out", "data.csv"), "data.csv exists; a datastore is never overwritten"),
        (("show", "missing.store"), "no datastore missing.store"),
        (("show", "good.txt"), "is not a wager datastore"),
        (("show", "."), "no datastore ."),
    ],
)
def test_bad_input_ends_in_one_sentence_and_exit_code_2(
    run: Run, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    files = {
        "data.csv": b"a,b",
        "empty.txt": b"",
        "good.txt": b"words",
        "latin.txt": "é".encode("latin-1"),
        "snow.txt": "\u2603".encode(),
        "good.jsonl": b'{"q": "x"}\n',
        "list.jsonl": b"[1]\n",
        "odd.jsonl": b'{"q": "x"}\n{"q"\n',
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert len([line for line in err.strip().splitlines() if not UNDER_WAY.search(line)]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
