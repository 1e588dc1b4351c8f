"""Those of vLLM's arguments that wager looks at or adds to, read without vLLM, whose import takes many seconds."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


def _settings(text: str) -> dict[str, Any]:
    return dict(json.loads(text).items())


# Name -> how its value is read, and vLLM's default. What is read otherwise (1k, {…} in YAML) is left to vLLM's parser.
KNOWN: dict[str, tuple[Any, Any]] = {
    "additional_config": (_settings, {}),
    "compilation_config": (_settings, None),
    "cudagraph_capture_sizes": ([int], None),
    "data_parallel_size": (int, 1),
    "dtype": (str, "auto"),
    "enforce_eager": (bool, False),
    "kv_cache_memory_bytes": (int, None),
    "max_cudagraph_capture_size": (int, None),
    "max_num_seqs": (int, None),
    "pipeline_parallel_size": (int, 1),
    "scheduler_cls": (str, None),
    "speculative_config": (_settings, None),
}
OTHERS: dict[str, tuple[Any, Any]] = {  # those that wager reads itself
    "served_model_name": ([str], None),
    "host": (str, None),
    "port": (int, 8000),
    "uds": (str, None),
    "headless": (bool, False),
}
FILE = "config"  # names a file with any of them
JSON = ("additional_config", "speculative_config")  # whose values vLLM reads as JSON and as nothing else
NICKNAMES = {"-sc": "speculative_config"}
SHORT = ("-tp", "-q", "-ep")  # short names of arguments that are none of these


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def check(given: Sequence[str]) -> None:
    """Refuse with one sentence a value of these that vLLM would refuse many seconds later."""
    for at, word in enumerate(given):
        option, equals, value = word.partition("=")
        name = NICKNAMES.get(option) or option.removeprefix("--").replace("-", "_")
        if name not in (*JSON, "port") or not option.startswith("-"):
            continue
        value = value if equals else next(iter(given[at + 1 :]), "")
        if name == "port" and not value.strip().isdecimal():
            raise ValueError(f"--port is a number from 1 to 65535, not {value!r}")
        if name in JSON:
            _check_json(f"--{name.replace('_', '-')}", value)


def _check_json(option: str, text: str) -> None:
    own = '{"method": "mtp", "num_speculative_tokens": 3}'
    example = f"{option} '{own if option == '--speculative-config' else '{}'}'"
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{option} is not JSON: {error}; write it as in {example}") from None
    if not isinstance(content, dict | None):
        raise ValueError(f"{option} is a JSON object, not {text}; write it as in {example}")


def is_about(word: str, name: str) -> bool:
    """Whether a word of a command line names this argument, however it is written, or a single setting of it."""
    option = word.partition("=")[0].partition(".")[0]
    if option in NICKNAMES:
        return NICKNAMES[option] == name
    return len(option) > 2 and option.startswith("--") and name.startswith(option[2:].replace("-", "_"))


def read(given: Sequence[str]) -> Namespace | None:
    """Their values, defaults included; None where only vLLM's own parser can tell what is meant."""
    parser, every = _Parser(add_help=False, allow_abbrev=False), KNOWN | OTHERS
    for name, (kind, default) in every.items():
        how: dict[str, Any] = {"action": "store_true"} if kind is bool else {"default": default}
        if isinstance(kind, list):
            how |= {"nargs": "+", "type": kind[0]}
        elif kind is not bool:
            how["type"] = kind
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, **how)
    words = []
    for word in given:
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            name = option[2:].replace("-", "_")
            if name not in every and (name == FILE or _part_of(name, every)):
                return None
            option = f"--{name.replace('_', '-')}"
        elif option.startswith("-") and option not in SHORT and not _number(option):
            return None
        words.append(option + equals + value)
    try:
        return parser.parse_known_args(words)[0]
    except (ValueError, AttributeError):  # no number, no JSON, no mapping
        return None


def known(found: Namespace) -> dict[str, Any]:
    """What of ``KNOWN`` was given and is not the default."""
    return {name: getattr(found, name) for name, (_, default) in KNOWN.items() if getattr(found, name) != default}


def _part_of(name: str, every: Iterable[str]) -> bool:
    """Whether it abbreviates one of these, turns it off, or is a single setting of one (speculative_config.method)."""
    whole = name.partition(".")[0].removeprefix("no_")
    return any(one.startswith(whole) for one in every)


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
