"""One streamed answer of an OpenAI-compatible server: asked for once, timed as it comes."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(slots=True)
class Answer:
    """What has come of an answer so far."""

    first: float | None = None  # the clock's, at the first token
    end: float = 0.0  # the clock's, at the last one, or when it failed
    prompt_tokens: int = 0
    output_tokens: int = 0
    finished: bool = False
    counted: bool = False  # the server said how many tokens
    error: str | None = None
    text: list[str] = field(default_factory=list)

    def take(self, chunk: dict[str, Any], now: float) -> None:
        """Note what one event brought: text, the end, or the count of tokens."""
        if chunk.get("error"):
            error = chunk["error"]
            raise ValueError(error.get("message") if isinstance(error, dict) else error)
        if usage := chunk.get("usage"):
            self.prompt_tokens, self.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            self.counted = True
        for choice in chunk.get("choices", ()):
            delta, ended = choice.get("delta", {}), choice.get("finish_reason") is not None
            # A first event with a role and no text is no token yet; a reasoning model's thoughts are tokens, not text.
            if delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or ended:
                self.first, self.end = self.first or now, now
            self.text.append(delta.get("content") or "")
            self.finished = self.finished or ended


async def ask(client: AsyncOpenAI, timeout: float, **asked: Any) -> Answer:
    """Stream one answer; what goes wrong on the way is written in it."""
    answer = Answer()
    try:
        async with asyncio.timeout(timeout):
            await _stream(client, answer, asked)
        if not answer.finished:
            answer.error = "the stream ended before the answer did"
        elif not answer.counted:
            answer.error = "the server did not count the tokens: it sent no usage, which stream_options asked for"
    except TimeoutError:
        answer.error = f"no whole answer within {timeout:g} s"
    except Exception as error:  # the client's, the transport's, a reply that is no JSON: each is this request's result
        answer.error = _sentence(error)
    if answer.error is not None:
        answer.end = perf_counter()
    return answer


async def _stream(client: AsyncOpenAI, answer: Answer, asked: dict[str, Any]) -> None:
    """Read the server-sent events off the wire.

    The client would also make an object of each; that takes as long again, and a client short of time measures itself.
    """
    create: Any = client.chat.completions.with_streaming_response.create
    async with create(**asked, stream=True, stream_options={"include_usage": True}) as response:
        rest = b""
        async for piece in response.iter_bytes():
            now = perf_counter()
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                data = line.removeprefix(b"data:").strip()
                if data.startswith(b"{"):  # else an empty line, a comment or [DONE]
                    answer.take(json.loads(data), now)


def connect(url: str) -> AsyncOpenAI:
    """A client that asks once and goes straight to the server, whatever proxies the environment names."""
    try:
        import openai
    except ImportError:
        raise ValueError("a load needs the openai package; install it with: pip install 'wager[bench]'") from None
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"a server's URL is as in http://127.0.0.1:8000, not {url!r}")
    base = url.rstrip("/")
    # Certificates take a tenth of a second to load; plain HTTP has no use for them where no redirect leads to HTTPS.
    straight = openai.DefaultAsyncHttpxClient(
        trust_env=False, timeout=None, follow_redirects=False, verify=parts.scheme == "https"
    )
    client = openai.AsyncOpenAI(
        base_url=base if base.endswith("/v1") else f"{base}/v1",
        api_key=os.environ.get("OPENAI_API_KEY") or "none",
        max_retries=0,
        http_client=straight,
        timeout=None,
    )
    _ = client.chat.completions.with_streaming_response  # imported on first use, which should not be a measured one
    return client


async def find_model(client: AsyncOpenAI, url: str, model: str | None = None) -> str:
    """The model asked for, else the first that the server lists; a server that does not answer is refused."""
    import openai

    try:
        listed = (await client.models.list(timeout=30)).data
    except openai.APIConnectionError as error:
        raise ValueError(f"no server answers at {url}: {_sentence(error)}") from None
    except (openai.APIError, ValueError) as error:
        if model is not None:  # it is there; not every server lists its models
            return model
        raise ValueError(f"{url} does not list its models ({_sentence(error)}); name one with --model") from None
    if model is None and not listed:
        raise ValueError(f"{url} lists no model; name one with --model")
    return model or listed[0].id


def _sentence(error: BaseException) -> str:
    """An error in one line, with the cause that the client wraps."""
    said = " ".join(str(error).split()) or type(error).__name__
    cause = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    more = " ".join(str(cause).split()) if cause is not None else ""
    return (f"{said.rstrip('.')} ({more})" if more and more not in said else said)[:300]
