"""Many requests on a server that has too little memory for them: random lengths, random aborts, nothing may be lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from wager.bench.arrivals import Conversation
from wager.bench.load import base_url
from wager.bench.reference import Reference
from wager.bench.servers import Server

TIMEOUT = 300.0  # seconds after which a request counts as stuck


@dataclass(slots=True)
class Endured:
    """What became of the requests."""

    finished: int = 0
    aborted: int = 0
    errors: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)  # texts that differ from the reference where it has no tie
    tokens: int = 0
    seconds: float = 0.0
    memory: dict[int, int] = field(default_factory=dict)  # requests done -> bytes the server holds

    def json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "finished": self.finished,
            "aborted": self.aborted,
            "errors": len(self.errors),
            "first_error": self.errors[0] if self.errors else None,
            "texts_that_differ": len(self.differing),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "memory_bytes": self.memory,
        }


def connect(url: str) -> Any:
    """A client that asks once and goes straight to the server, whatever proxies the environment names."""
    try:
        import openai
    except ImportError:
        raise ValueError("this needs the openai package; install it with: pip install 'wager[bench]'") from None
    http = openai.DefaultAsyncHttpxClient(trust_env=False, timeout=None)
    return openai.AsyncOpenAI(base_url=f"{base_url(url)}/v1", api_key="none", max_retries=0, http_client=http)


def references(server: Server, model: str, prompts: Sequence[Conversation], tokens: int) -> list[Reference]:
    """The greedy text of every prompt, with its leads."""

    async def all_of_them() -> list[Reference]:
        async with connect(server.url) as client:

            async def one(messages: Conversation) -> Reference:
                answer = await client.chat.completions.create(
                    model=model,
                    messages=messages,
                    max_tokens=tokens,
                    temperature=0,
                    logprobs=True,
                    top_logprobs=2,
                )
                return Reference.of(answer)

            return [await one(messages) for messages in prompts]

    return asyncio.run(all_of_them())


def endure(
    server: Server,
    model: str,
    prompts: Sequence[Conversation],
    expected: Sequence[Reference],
    *,
    requests: int,
    concurrency: int,
    tokens: int,
    aborts: float = 0.15,
    seed: int = 0,
    on_done: Callable[[], None] | None = None,
) -> Endured:
    """So many requests, each for a random prompt and length; some are dropped by their client halfway."""
    result = Endured()
    rng = random.Random(seed)
    left = iter(range(requests))

    async def one(client: Any) -> None:
        which, length = rng.randrange(len(prompts)), rng.randint(2, tokens)
        stop = rng.randint(1, length) if rng.random() < aborts else None
        text, pieces = "", 0
        stream = await client.chat.completions.create(
            model=model, messages=prompts[which], max_tokens=length, temperature=0, stream=True
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
        if expected[which].differs(text, part=True):
            result.differing.append(text)

    async def place(client: Any) -> None:
        for number in left:
            try:
                await asyncio.wait_for(one(client), TIMEOUT)
            except Exception as error:  # whatever went wrong is the result
                result.errors.append(f"{type(error).__name__}: {error}")
            if number in (requests // 5, requests - 1):
                result.memory[number + 1] = server.memory()
            if on_done is not None:
                on_done()

    async def drive() -> None:
        async with connect(server.url) as client:
            await asyncio.gather(*(place(client) for _ in range(concurrency)))

    began = monotonic()
    asyncio.run(drive())
    result.seconds = monotonic() - began
    return result
