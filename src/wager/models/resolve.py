"""A model by name: the embedded one, a folder, or a Hugging Face id where a hub can be reached."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wager.core.require import require, require_type
from wager.models import embedded
from wager.models.embedded import Progress

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("auto", "float32", "bfloat16", "float16")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_SECONDS = 5.0  # to wait for the hub's first answer; its client alone would try for half a minute per file
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json")
WOULD_WORK = (
    f"a model is {embedded.NAME} (fetched once), a folder with config.json, or a Hugging Face id such as org/name"
)


def load(
    name: str | Path, *, dtype: str = "auto", device: str = "auto", progress: Progress | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and its tokenizer, ready to generate; see `load_model`."""
    where, place = _find(name, dtype, device, progress)
    return _model(name, where, dtype, place), _tokenizer(name, where)


def load_model(
    name: str | Path, *, dtype: str = "auto", device: str = "auto", progress: Progress | None = None
) -> PreTrainedModel:
    """The decoder-only model of that name, in evaluation mode.

    dtype: float32, bfloat16 or float16; auto is float32 on a CPU, where half precision is often far slower, and what
    the model was published in elsewhere. device: auto is cuda where there is one, else cpu.
    """
    where, place = _find(name, dtype, device, progress)
    return _model(name, where, dtype, place)


def load_config(name: str | Path, *, progress: Progress | None = None) -> Any:
    """The configuration of the decoder-only model of that name."""
    return _config(name, resolve(name, progress=progress))


def load_tokenizer(name: str | Path, *, progress: Progress | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of the model of that name."""
    return _tokenizer(name, resolve(name, progress=progress))


def resolve(name: str | Path, *, progress: Progress | None = None) -> Path | str:
    """The folder that holds the model, or its hub id where the hub has it and answers; else what would work is told."""
    require_type(isinstance(name, (str, Path)), f"a model is given by its name or path, not by a {type(name).__name__}")
    if name == embedded.NAME:
        return embedded.folder(progress=progress)
    folder = Path(os.path.expanduser(name))
    if name != "" and os.path.isdir(folder):  # not Path.is_dir, which raises for a name that is too long
        if not (folder / "config.json").is_file():
            raise ValueError(f"the folder {name} has no config.json, so it is not a model saved by transformers")
        return folder
    require(not os.path.isfile(folder), f"{name} is a file, not a model; {WOULD_WORK}")
    if not isinstance(name, str) or not HUB_ID.fullmatch(name):
        raise ValueError(f"no folder {str(name)!r}; {WOULD_WORK}")
    return _on_hub(name)


def check_name(name: str) -> None:
    """Refuse what `resolve` would refuse, unless only a download can tell; imports neither torch nor transformers."""
    if name != embedded.NAME:
        resolve(name)


def _find(name: str | Path, dtype: str, device: str, progress: Progress | None) -> tuple[Path | str, torch.device]:
    """Where the model is and where to put it; a wrong device is refused before the download of the embedded model."""
    require(dtype in DTYPES, f"unknown dtype {dtype!r}; choose from {', '.join(DTYPES)}")
    if name == embedded.NAME:
        place = _device(device)
        return resolve(name, progress=progress), place
    return resolve(name), _device(device)


@cache
def _on_hub(name: str) -> Path | str:
    """The id when the hub answers for it, else the folder of an earlier download."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        _ask_hub(name)
        return name
    except errors.HFValidationError:
        raise ValueError(f"no folder {name!r}, and no id a hub could have; {WOULD_WORK}") from None
    except errors.GatedRepoError:
        problem = "it is on the hub, but gated: accept its terms there and log in with `hf auth login`"
    except errors.RepositoryNotFoundError:
        problem = "the hub has no public model of that id (for a private one, log in with `hf auth login`)"
    except errors.EntryNotFoundError:
        problem = "it is on the hub, but without a config.json"
    except errors.OfflineModeIsEnabled:
        problem = "HF_HUB_OFFLINE forbids asking the hub"
    except Exception as error:  # the HTTP client, and so its errors, changes between releases of huggingface_hub
        problem = f"the hub cannot be reached ({type(error).__name__})"
    downloaded = try_to_load_from_cache(name, "config.json")
    if isinstance(downloaded, str):
        return Path(downloaded).parent
    raise ValueError(f"no folder {name!r}, nothing downloaded earlier, and {problem}; {WOULD_WORK}")


def _ask_hub(name: str) -> None:
    """One question, asked once, for HUB_SECONDS in all; raises what the hub's client raises, or TimeoutError.

    transformers would ask for every file and repeat each question five times. The client's own limit is for each
    address of the hub, and does not bound the look-up of its name.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    raised: list[BaseException | None] = []

    def ask() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=HUB_SECONDS, token=None)
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    asking = threading.Thread(target=ask, name="wager-hub", daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    error = raised[0] if raised else TimeoutError(f"no answer within {HUB_SECONDS:g} seconds")
    if error is not None:
        raise error


def _config(name: str | Path, where: Path | str) -> Any:
    from transformers import AutoConfig

    with one_sentence(f"cannot load the configuration of {name}"), embedded.quiet():
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    _check_decoder_only(name, config)
    return config


def _model(name: str | Path, where: Path | str, dtype: str, place: torch.device) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    config = _config(name, where)
    if isinstance(where, Path) and not any(next(where.glob(pattern), None) for pattern in WEIGHTS):
        raise ValueError(f"the folder of {name} has no weights: no *.safetensors and no pytorch_model.bin in {where}")
    with one_sentence(f"cannot load the model of {name}"), embedded.quiet():
        chosen = _dtype(name, dtype, place)
        loaded: Any = AutoModelForCausalLM.from_pretrained(where, config=config, dtype=chosen, trust_remote_code=False)
        model: PreTrainedModel = loaded.to(place).eval()
    return model


def _tokenizer(name: str | Path, where: Path | str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with one_sentence(f"cannot load the tokenizer of {name}"), embedded.quiet():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    return tokenizer


def _dtype(name: str | Path, dtype: str, place: torch.device) -> str:
    if dtype == "auto" and place.type == "cpu":
        return "float32"
    return embedded.DTYPE if dtype == "auto" and name == embedded.NAME else dtype


def _device(device: str) -> torch.device:
    """Where to put a model; refuses a device that this machine does not have."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise ValueError(f"this machine has no device {device!r}; choose auto, cpu, or cuda on a GPU") from None
    return place


def _check_decoder_only(name: str | Path, config: Any) -> None:
    """Refuse what cannot be decoded one token after another: encoders, and encoders with a decoder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    what = ", ".join(config.architectures or [config.model_type])
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder ({what}); wager needs a decoder-only model such as a Llama")
    causal = {str(entry) for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # A BERT has a causal class too, so the type alone does not tell: the saved architecture does.
    if not known or (config.architectures and not causal.intersection(config.architectures)):
        raise ValueError(f"{name} is no causal language model ({what}); wager needs a decoder-only one such as a Llama")


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turn whatever reading a file raises, at length, into one sentence that begins with this."""
    try:
        yield
    except Exception as error:  # a broken file can raise anything: OSError, KeyError, SafetensorError, ImportError
        said = str(error).strip().splitlines() or [""]
        reason = re.split(r"(?<=[^.\s]{2}[.!?])\s", said[0])[0].rstrip(".!: ")[:300]
        raise ValueError(f"{what}: {type(error).__name__}: {reason}") from None
