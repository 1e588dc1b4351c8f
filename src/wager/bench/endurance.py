"""Many requests on a server that has too little memory for them: random lengths, random aborts, nothing may be lost."""

import asyncio
import json
import random
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

from wager.bench.arrivals import Conversation
from wager.bench.load import base_url
from wager.bench.servers import Server

GROWTH = 1.1  # of the memory after a fifth of the requests, at the end
END = "<|im_end|>"  # the end of a turn, which stands among a server's tokens and not in its text
TIE = 1e-3  # nats between two tokens that float error may swap
TIMEOUT = 300.0  # seconds after which a request counts as stuck


@dataclass(frozen=True, slots=True)
class Reference:
    """A greedy text token by token, with how far ahead of the runner-up each token was."""

    tokens: tuple[str, ...]
    leads: tuple[float, ...]  # nats

    @classmethod
    def of(cls, answer: Any) -> Self:
        """From a chat completion asked for with ``logprobs=True, top_logprobs=2``."""
        content = [token for token in answer.choices[0].logprobs.content if token.token != END]
        leads = [token.top_logprobs[0].logprob - token.top_logprobs[1].logprob for token in content]
        return cls(tuple(token.token for token in content), tuple(leads))

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    def differs(self, text: str, *, part: bool = False) -> bool:
        """Whether ``text`` parts from this where it is no tie; ``part``: it may stop earlier."""
        written = ""
        for token, lead in zip(self.tokens, self.leads, strict=True):
            if not text.startswith(written + token):
                stopped = part and (written + token).startswith(text)
                return not stopped and lead > TIE
            written += token
        return text != written


@dataclass(slots=True)
class Endured:
    """What became of the requests."""

    finished: int = 0
    aborted: int = 0
    errors: int = 0
    first_error: str | None = None
    texts_that_differ: int = 0  # from the reference where it has no tie
    tokens: int = 0
    seconds: float = 0.0
    memory_bytes: dict[int, int] = field(default_factory=dict)  # requests done -> bytes the server holds


def connect(url: str) -> Any:
    """A client that asks once and goes straight to the server, whatever proxies the environment names."""
    try:
        import openai
    except ImportError:
        raise ValueError("this needs the openai package; install it with: pip install 'wager[bench]'") from None
    http = openai.DefaultAsyncHttpxClient(trust_env=False, timeout=None)
    return openai.AsyncOpenAI(base_url=f"{base_url(url)}/v1", api_key="none", max_retries=0, http_client=http)


async def references(server: Server, many: "Requests") -> list[Reference]:
    """The greedy text of every prompt, with its leads."""
    asked: dict[str, Any] = {"model": many.model, "max_tokens": many.tokens, "temperature": 0, "logprobs": True}
    async with connect(server.url) as client:
        create = client.chat.completions.create
        return [Reference.of(await create(messages=one, **asked, top_logprobs=2)) for one in many.prompts]


@dataclass(frozen=True, slots=True)
class Requests:
    """So many requests, each for a random prompt and length; some are dropped by their client halfway."""

    model: str
    prompts: Sequence[Conversation]
    count: int
    concurrency: int
    tokens: int
    aborts: float = 0.15  # share of the requests
    expected: Sequence[Reference] = ()  # the text of each prompt

    def send(self, server: Server, on_done: Callable[[], None] = lambda: None) -> Endured:
        """Put them all on a server."""
        result, rng, left = Endured(), random.Random(0), iter(range(self.count))

        async def place(client: Any) -> None:
            for number in left:
                try:
                    await asyncio.wait_for(self._one(client, rng, result), TIMEOUT)
                except Exception as error:  # whatever went wrong is the result
                    result.errors += 1
                    result.first_error = result.first_error or f"{type(error).__name__}: {error}"
                if number in (self.count // 5, self.count - 1):
                    result.memory_bytes[number + 1] = server.memory()
                on_done()

        async def drive() -> None:
            async with connect(server.url) as client:
                await asyncio.gather(*(place(client) for _ in range(self.concurrency)))

        began = monotonic()
        asyncio.run(drive())
        result.seconds = monotonic() - began
        return result

    async def _one(self, client: Any, rng: random.Random, result: Endured) -> None:
        which, length = rng.randrange(len(self.prompts)), rng.randint(2, self.tokens)
        stop = rng.randint(1, length) if rng.random() < self.aborts else None
        text, pieces = "", 0
        stream = await client.chat.completions.create(
            model=self.model, messages=self.prompts[which], max_tokens=length, temperature=0, stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                pieces += 1
                if pieces == stop:
                    await stream.close()
                    result.aborted += 1
                    break
        else:
            result.finished += 1
        result.tokens += pieces
        result.texts_that_differ += self.expected[which].differs(text, part=True)


def failed(outcome: Mapping[str, Any]) -> bool:
    """Whether anything was lost, changed or leaked."""
    wrong = outcome["errors"] or outcome["texts_that_differ"] or outcome["after_restart"]["errors"]
    return bool(wrong or outcome["stuck"] or outcome["memory_growth"] > GROWTH or not outcome["state_kept"])


def survive(
    many: Requests, *, shared: Sequence[str], ours: Sequence[str], on_done: Callable[[], None]
) -> dict[str, Any]:
    """Texts of a server without speculation, then the requests on one of wager's, its kill at work and its restart."""
    # shared: arguments of both servers, the model first; ours: further ones of wager's.
    concurrency = many.concurrency
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with Server.vllm(*shared, log=place / "plain.log") as plain:
            many = replace(many, expected=asyncio.run(references(plain.wait(), many)))
        state = place / "state.json"

        def start() -> Server:
            made = Server.wager(*shared, *ours, "--state", str(state), log=place / "wager.log")
            return stack.enter_context(made).wait()

        server = start()
        endured = many.send(server, on_done)
        waited = "vllm:num_requests_running", "vllm:num_requests_waiting"
        _wait(lambda: not _metric(server, *waited), 30.0)  # what is left then is stuck
        stuck, preemptions = int(_metric(server, *waited)), int(_metric(server, "vllm:num_preemptions_total"))
        saved_before = state.stat().st_mtime_ns if state.exists() else 0
        busy = threading.Thread(target=replace(many, count=20 * concurrency, aborts=0.0).send, args=(server,))
        busy.start()
        _wait(lambda: state.exists() and state.stat().st_mtime_ns > saved_before, TIMEOUT)  # one save at least
        running = int(_metric(server, "vllm:num_requests_running"))
        server.kill()
        busy.join()
        saved = json.loads(state.read_text())
        server = start()
        again = replace(many, count=concurrency, concurrency=4, tokens=8, aborts=0.0).send(server)
        server.stop()
        kept = json.loads(state.read_text())
    memory = list(endured.memory_bytes.values())  # after a fifth of the requests, and at the end
    return {
        **asdict(endured),
        **{"stuck": stuck, "preemptions": preemptions, "memory_growth": memory[-1] / memory[0] if memory else 1.0},
        **{"after_restart": asdict(again), "running_when_killed": running},
        "state_bytes_saved_and_after_restart": [len(json.dumps(saved)), len(json.dumps(kept))],
        "state_kept": _largest_count(kept) >= _largest_count(saved) > 0,  # the policy knows at least as much
    }


def _largest_count(state: Any) -> float:
    """How much a saved policy has seen: the largest number in it."""
    if isinstance(state, dict):
        state = [value for key, value in state.items() if key not in ("rng", "parameters")]
    if isinstance(state, list):
        return max(map(_largest_count, state), default=0)
    return float(state) if isinstance(state, int | float) and not isinstance(state, bool) else 0.0


def _metric(server: Server, *names: str) -> float:
    """The sum of a server's metrics of these names."""
    starts = tuple(f"{name}{{" for name in names)
    return sum(float(line.rpartition(" ")[2]) for line in server.metrics().splitlines() if line.startswith(starts))


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Until it holds, or the time is over."""
    ends = monotonic() + seconds
    while not condition() and monotonic() < ends:
        sleep(0.5)
