"""The settings of vLLM and transformers that docs/coming-from.md names exist in the installed versions.

llama.cpp is not installed here, so its options are only held against the list in tests/pages.py.
"""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from pages import LLAMA_CPP, VLLM

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def section(name: str) -> str:
    """The part of the page under a heading."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")
    assert rest, f"the page has no part {name}"
    return rest.partition("\n## ")[0]


def column(table: str, at: int) -> list[str]:
    """The cells of one column of all tables in a part."""
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [row.strip("|").split(" | ")[at].strip() for row in rows]


def keys(text: str) -> set[str]:
    """The keys and bare names in quotes: `"method": "ngram"` has the key method."""
    return set(re.findall(r'"(\w+)"(?=[:`,]| with)', text)) - values(text)


def values(text: str) -> set[str]:
    """Methods: what follows "method", and further names in the same cell."""
    found = set()
    for cell in re.findall(r'`"method": [^|]*', text):
        found |= set(re.findall(r'"(\w+)"', cell)) - {"method", "model", "num_speculative_tokens"}
    return found


def flat(kinds: Any) -> set[str]:
    """The names of a Literal, those of Literals in it included."""
    return {name for one in get_args(kinds) for name in ([one] if isinstance(one, str) else flat(one))}


@pytest.fixture(scope="module")
def speculative() -> Any:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; it comes with wager[vllm]")
    from wager.vllm.compat import quiet

    with quiet():
        from vllm.config import speculative
    return speculative


def test_keys_and_methods_of_the_speculative_configuration_exist(speculative: Any) -> None:
    cells = " | ".join(column(section("vLLM"), 0))
    known, methods = {one.name for one in fields(speculative.SpeculativeConfig)}, flat(speculative.SpeculativeMethod)
    assert len(keys(cells)) > 8
    assert len(values(cells)) > 8
    assert keys(cells) <= known, sorted(keys(cells) - known)
    assert values(cells) <= methods, sorted(values(cells) - methods)


def test_options_of_vllm_that_pages_name_exist() -> None:
    pytest.importorskip("vllm.config", reason="vLLM is not installed; it comes with wager[vllm]")
    from wager.vllm.compat import quiet

    with quiet():
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.cli.serve import ServeSubcommand
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        below = FlexibleArgumentParser(prog="vllm").add_subparsers(dest="subparser")
        known = set(ServeSubcommand().subparser_init(below)._option_string_actions)
    assert known >= VLLM, sorted(VLLM - known)
    assert {one.name for one in fields(AsyncEngineArgs)} >= {"speculative_config", "scheduler_cls"}


def generation_settings() -> set[str]:
    """What `model.generate` takes: its parameters, those of its settings, and those of assisted generation."""
    from transformers import GenerationConfig, GenerationMixin

    takes = (GenerationMixin.generate, GenerationMixin._get_candidate_generator)
    return {name for one in takes for name in inspect.signature(one).parameters} | set(vars(GenerationConfig()))


def test_settings_of_transformers_exist() -> None:
    table = [cell for cell in column(section("transformers"), 0) if "model.generate" not in cell]
    table += [cell for cell in column(PAGE.read_text().partition("\n## ")[0], 2) if cell != "transformers"]
    named = {name for cell in table for name in re.findall(r"`(\w+)(?:=[^`]*)?`", cell)}
    assert len(named) > 15
    assert named <= generation_settings(), sorted(named - generation_settings())


def test_options_of_llama_cpp_are_the_listed_ones() -> None:
    named = {option for cell in column(section("llama.cpp"), 0) for option in re.findall(r"--[a-z][a-z-]+", cell)}
    assert named == LLAMA_CPP


def test_a_wrong_name_is_found(speculative: Any) -> None:
    cells = '`"method": "ngrams"` or `"eagle"` | `"prompt_lookup_most"`, `"model"`'
    assert keys(cells) == {"method", "prompt_lookup_most", "model"}
    assert values(cells) == {"ngrams", "eagle"}
    assert "ngrams" not in flat(speculative.SpeculativeMethod)
    assert "num_assistant_token" not in generation_settings()
