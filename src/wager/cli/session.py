"""A loaded model and its decoder, as `generate` and `chat` use them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console

from wager.cli.files import provenance
from wager.cli.options import Options
from wager.core import Round, TraceWriter
from wager.core.files import MemoryWarning
from wager.drafters import registry

if TYPE_CHECKING:
    from wager.decoding.decoder import Decoder
    from wager.decoding.generation import Generation, Piece

INTERRUPTED = "interrupted"  # how a text ends that its reader stopped
Message = Mapping[str, str]  # role and content


@dataclass(slots=True)
class Session:
    """A decoder with the choices it was made from."""

    options: Options
    decoder: Decoder
    tokenizer: Any

    @property
    def limit(self) -> int:
        """Most tokens the model holds, prompt and answer together."""
        return self.decoder.target.limit

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def afresh(self) -> None:
        """Forget what the policy and the drafters learned in this session; what was remembered before it stays.

        Otherwise the second run of a prompt would draft from its own first answer.
        """
        self.decoder.reset()

    @property
    def remembered(self) -> bool:
        """Whether the policy began with what earlier runs taught."""
        return self.decoder.memory is not None and self.decoder.memory.loaded is not None

    def keep(self) -> None:
        """Save what was learned, where it is to be remembered: now, while problems are told in one line."""
        if self.decoder.memory is not None:
            self.decoder.memory.save()

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """The conversation's tokens, up to where the answer begins."""
        from jinja2 import TemplateError

        try:
            encoded = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(f"the chat template of {self.options.model} refuses this conversation: {error}") from None
        ids: list[int] = encoded["input_ids"]
        return ids

    def text_ids(self, text: str) -> list[int]:
        """The text's tokens."""
        ids: list[int] = self.tokenizer(text).input_ids
        return ids

    def play(
        self,
        ids: Sequence[int],
        *,
        watch: Callable[[Piece], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        seed: int | None = None,
        **more: Any,
    ) -> Generation:
        """Generate; ``watch`` gets every piece as it comes, and ``stopped`` may end the text between two rounds.

        Seconds are the decoder's own: what ``watch`` takes is not counted.
        """
        from wager.decoding.generation import Generation

        tokens: list[int] = []
        sources: list[str] = []
        rounds: list[Round] = []
        rejected: list[tuple[int, ...]] = []
        prefill = decode = 0.0
        pieces = self.decoder.stream(list(ids), seed=seed, **{**self.options.settings(), **more})
        interrupted = False
        try:
            while not interrupted:
                began = perf_counter()
                piece = next(pieces, None)
                taken = perf_counter() - began
                if piece is None:  # the text was over before: nothing was decoded, and a memory may have been saved
                    break
                prefill, decode = (prefill, decode + taken) if tokens else (taken, 0.0)
                tokens += piece.tokens
                sources += piece.sources
                if piece.round is not None:
                    rounds.append(piece.round)
                    rejected.append(piece.rejected)
                if watch is not None:
                    watch(piece)
                interrupted = stopped()
        finally:
            pieces.close()  # type: ignore[attr-defined]  # a generator
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        finish = self.decoder.finish or INTERRUPTED
        return Generation(text, tokens, sources, len(ids), finish, prefill, decode, rounds, rejected)


def open_session(options: Options, console: Console) -> Session:
    """Load the model, saying on the console what takes long, and make its decoder."""
    from wager.models import load, resolve

    drafts = [value for name, value in map(registry.parse, options.specs) if name == "draft-model"]
    with console.status(f"loading {options.model} …", spinner="dots") as status:
        for draft in drafts:  # told before the target is loaded
            resolve(draft, progress=console.print)
        model, tokenizer = load(
            options.model, dtype=options.dtype, device=options.device, progress=lambda line: console.print(line)
        )
        status.update(f"preparing {options.model} …")
        from wager.decoding.decoder import Decoder

        drafters = options.specs or ["off"]
        decoder = Decoder(
            model,
            tokenizer,
            drafters=drafters,
            lengths=options.lengths_tried,
            trees=options.trees,
            policy=options.policy,
            seed=options.seed or 0,
            tokens=options.max_tokens,
            memory=options.remembers,
        )
    return Session(options, decoder, tokenizer)


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' warnings and bars, which would land in the middle of the text; ours are one line each."""
    if os.environ.get("WAGER_DEBUG"):
        yield
        return
    from wager.models.embedded import quiet

    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", MemoryWarning)
        warnings.showwarning = _tell
        yield


def _tell(
    message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    print(f"wager: {message}", file=sys.stderr)


@contextmanager
def recording(session: Session, path: Path | None) -> Iterator[None]:
    """Record every round in a new trace; when something fails, none is left behind."""
    if path is None:
        yield
        return
    model = session.decoder.model
    ran = {"dtype": str(model.dtype).removeprefix("torch."), "device": str(model.device)}
    with TraceWriter(path, {**provenance(), **session.options.described(), **ran}) as writer:
        session.decoder.trace = writer
        try:
            yield
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            session.decoder.trace = None
