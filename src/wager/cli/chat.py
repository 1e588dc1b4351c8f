"""`wager chat`: a conversation."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

from rich.console import Console

from wager.cli import parameters
from wager.cli.options import Options, System
from wager.cli.parameters import option
from wager.cli.session import Session, open_session, quietly
from wager.cli.shown import Writer, closing, legend
from wager.decoding.generation import Piece
from wager.policies.base import require

COMMANDS = {
    "/show": "colour tokens by where they came from, or stop doing so",
    "/reset": "forget the conversation",
    "/quit": "end, as Ctrl-D does",
    "/help": "list these commands",
}


@parameters.options
def command(
    options: Options,
    system: System = None,
    show: Annotated[bool, option("Colour every token by where it came from, as /show does.", "--show")] = False,
) -> None:
    """Talk to a model in the terminal; what one answer taught makes the next faster.

    Each line is a message. /show, /reset, /quit and /help are commands; Ctrl-C stops an answer, Ctrl-D ends.
    """
    told = Console(stderr=True, highlight=False)
    with quietly(options.model):
        session = open_session(options, told)
        require(session.chats, f"{options.model} has no chat template; wager generate --raw continues a text")
        Chat(session, Console(highlight=False), told, system, show=show).run()
        session.keep()


class Chat:
    """The conversation so far, and how it is shown."""

    def __init__(self, session: Session, out: Console, told: Console, system: str | None, *, show: bool) -> None:
        self.session, self.out, self.told, self.show = session, out, told, show
        self.system = [{"role": "system", "content": system}] if system is not None else []
        self.turns: list[dict[str, str]] = []  # user and assistant in turn
        self.answers, self.seed = 0, session.options.sampling_seed()

    def run(self) -> None:
        if sys.stdin.isatty():
            self._tell(f"{self.session.options.model}; /help lists the commands, Ctrl-D ends")
        for line in filter(None, self._lines()):
            if line in ("/quit", "/exit"):
                return
            if re.fullmatch(r"/\w*", line):
                self._obey(line)
            else:
                self._answer(line)

    def _lines(self) -> Iterator[str]:
        typed = sys.stdin.isatty()
        while True:
            try:
                line = input("> ") if typed else sys.stdin.readline()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:  # it stops answers; there is none
                print()
                continue
            except UnicodeError:
                raise ValueError("standard input is not text in UTF-8") from None
            if not typed and not line:
                return
            yield line.strip()

    def _obey(self, line: str) -> None:
        if line == "/show":
            self.show = not self.show
            self._tell("tokens are coloured by where they come from" if self.show else "tokens are no longer coloured")
        elif line == "/reset":
            self.turns.clear()
            self._tell("the conversation starts anew")
        elif line == "/help":
            for name, what in COMMANDS.items():
                self._tell(f"{name}  {what}")
        else:
            self._tell(f"there is no {line}; commands are {', '.join(COMMANDS)}")

    def _answer(self, line: str) -> None:
        self.turns.append({"role": "user", "content": line})
        ids = self._fit()
        if ids is None:
            return
        session, names = self.session, list(self.session.decoder.drafters)
        write = Writer(self.out, session.tokenizer, names, show=self.show)
        seed = None if self.seed is None else self.seed + self.answers
        with _interruptible() as interrupts:

            def watch(piece: Piece) -> bool:
                write(piece)
                return not interrupts

            made = session.decoder.generate(ids, **session.options.settings(), watch=watch, seed=seed)
        print(flush=True)
        self.answers += 1
        self.turns.append({"role": "assistant", "content": made.text})
        if self.show:
            self.told.print(legend(made, names))
        self._tell(closing(made))

    def _fit(self) -> list[int] | None:
        """The conversation's tokens; the oldest turns are dropped where they leave no room for an answer."""
        limit, dropped = self.session.limit, 0
        room = min(self.session.options.max_tokens, limit // 4)
        while len(ids := self.session.chat_ids([*self.system, *self.turns])) + room > limit and len(self.turns) > 2:
            del self.turns[:2]
            dropped += 1
        if dropped:
            exchanges = "exchange was" if dropped == 1 else f"{dropped} exchanges were"
            self._tell(f"the conversation no longer fits the model's {limit:,} tokens: the oldest {exchanges} dropped")
        if len(ids) >= limit:
            self.turns.pop()
            self._tell(f"this message makes {len(ids):,} tokens and the model holds {limit:,}: it was left out")
            return None
        return ids

    def _tell(self, line: str) -> None:
        self.told.print(line, style="dim", markup=False, soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """A list that is no longer empty after Ctrl-C; a second Ctrl-C interrupts as usual."""
    # The answer then ends between two rounds, so that drafters and policy stay whole.
    interrupts: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
