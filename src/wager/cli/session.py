"""A loaded model and its decoder, as `generate` and `chat` use them."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from wager.bench.workloads import chat_ids
from wager.cli.options import Options
from wager.cli.screen import stage
from wager.core import TraceWriter
from wager.core.provenance import provenance
from wager.core.state_file import StateWarning
from wager.drafters import registry
from wager.models.resolve import check_name

if TYPE_CHECKING:
    from wager.decoding.decoder import Decoder


@dataclass(slots=True)
class Session:
    """A decoder with the choices it was made from."""

    options: Options
    decoder: "Decoder"
    tokenizer: Any

    @property
    def limit(self) -> int:
        """Most tokens the model holds, prompt and answer together."""
        return self.decoder.target.limit

    @property
    def chats(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def remembered(self) -> bool:
        """Whether the policy started from the state of earlier runs."""
        return self.decoder.state is not None and self.decoder.state.loaded is not None

    def keep(self) -> None:
        """Save the policy's state where it is kept: now, while problems are told in one line."""
        if self.decoder.state is not None:
            self.decoder.state.save()

    def chat_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins."""
        return chat_ids(self.tokenizer, messages)


def open_session(options: Options, console: Console) -> Session:
    """Load the model, saying on the console what takes long, and make its decoder."""
    from wager.models import resolve

    drafts = [value for name, value in map(registry.parse, options.specs) if name == "draft-model"]
    with stage(f"loading {options.model} …", console) as now:
        for draft in drafts:  # told before the target is loaded
            resolve(draft, progress=console.print)
        model, tokenizer = options.load(progress=lambda line: console.print(line))
        now(f"preparing {options.model} …")
        from wager.decoding.decoder import Decoder

        arms: dict[str, Any] = {"lengths": options.lengths_tried, "trees": options.trees}
        policy: dict[str, Any] = {"policy": options.policy, "seed": options.seed or 0, "state": options.keeps_state}
        drafters = options.specs or ["off"]
        decoder = Decoder(model, tokenizer, drafters=drafters, tokens=options.max_tokens, **arms, **policy)
    return Session(options, decoder, tokenizer)


@contextmanager
def quietly(model: str) -> Iterator[None]:
    """Without transformers' warnings and bars, which would land in the middle of the text; ours are one line each.

    A model that does not exist is refused first: importing transformers takes seconds.
    """
    check_name(model)
    if os.environ.get("WAGER_DEBUG"):
        yield
        return
    from wager.models.embedded import quiet

    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", StateWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"wager: {message}", file=sys.stderr)
        yield


@contextmanager
def recording(session: Session, path: Path | None) -> Iterator[None]:
    """Record every round in a new trace; when something fails, none is left behind. What was interrupted is kept."""
    if path is None:
        yield
        return
    model = session.decoder.model
    ran = {"dtype": str(model.dtype).removeprefix("torch."), "device": str(model.device)}
    with TraceWriter(path, {**provenance(), **session.options.described(), **ran}) as writer:
        session.decoder.trace = writer
        try:
            yield
        except Exception:
            path.unlink(missing_ok=True)
            raise
        finally:
            session.decoder.trace = None
