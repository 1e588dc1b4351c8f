"""A small chat server whose delays are known, for the load benchmark."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FIRST, EACH = 0.06, 0.02  # seconds to the first token, and to each one after it
SLACK = 0.1  # seconds a busy machine may add


@dataclass
class Server:
    """Answers by the prompt: fail, cut, die, end, hang, uncounted, or an answer of max_completion_tokens."""

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)  # the clock's
    flying: int = 0
    most_flying: int = 0
    speculates: bool = False
    models: str | None = (
        '{"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "t"}]}'
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1].decode()
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                if path == "/v1/models":
                    answer = self.models or '{"error": {"message": "no such path"}}'
                    writer.write(_whole("200 OK" if self.models else "404 Not Found", answer))
                elif path == "/metrics":
                    writer.write(_whole("200 OK", self._metrics()))
                elif not await self._chat(json.loads(body), writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    def _metrics(self) -> str:
        """As a server writes them that drafts two tokens for every request and sees the first accepted."""
        if not self.speculates:
            return ""
        n = len(self.bodies)
        counts = {"num_drafts": n, "num_draft_tokens": 2 * n, "num_accepted_tokens": n}
        lines = [f'vllm:spec_decode_{name}_total{{engine="0"}} {count}' for name, count in counts.items()]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{engine="0",position="{i}"}} {count}' for i, count in enumerate((n, 0))]
        return "\n".join(lines) + "\n"

    async def _chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        self.arrived.append(time.perf_counter())
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)
        try:
            return await self._answer(body, body["messages"][-1]["content"], writer)
        finally:
            self.flying -= 1

    async def _answer(self, body: dict[str, Any], asked: str, writer: asyncio.StreamWriter) -> bool:
        if asked == "fail":
            writer.write(_whole("500 Internal Server Error", '{"error": {"message": "out of memory"}}'))
            return True
        if asked == "hang":
            await asyncio.sleep(5)
            return False
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        count = body["max_completion_tokens"]
        await asyncio.sleep(FIRST)
        writer.write(_event({"role": "assistant", "content": ""}))  # as vLLM starts: with the first token
        for i in range(count):
            if i:
                await asyncio.sleep(EACH)
            if asked == "cut" and i == 2:
                return False
            if asked == "die" and i == 2:
                writer.write(_piece(b'data: {"error": {"message": "engine died", "code": 500}}\n\ndata: [DONE]\n\n'))
                break
            writer.write(_event({"content": f"{asked} {i};"}))
            await writer.drain()
        if asked not in ("end", "die"):
            writer.write(_event({}, finish="length"))
            if asked != "uncounted":
                writer.write(_event(usage={"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}))
            writer.write(_piece(b"data: [DONE]\n\n"))
        writer.write(b"0\r\n\r\n")
        return True


def _whole(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    return (head + text).encode()


def _piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(delta: dict[str, Any] | None = None, finish: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    said = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices}
    return _piece(f"data: {json.dumps({**said, 'usage': usage}, ensure_ascii=False)}\n\n".encode())


@contextmanager
def serving() -> Iterator[Server]:
    """A server that listens."""
    made, ready, loop = Server(), threading.Event(), asyncio.new_event_loop()

    async def listen() -> None:
        listening = await asyncio.start_server(made.connected, "127.0.0.1", 0, backlog=200)
        made.port = listening.sockets[0].getsockname()[1]
        ready.set()

    def work() -> None:
        loop.create_task(listen())
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(5)
    yield made
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


def unused() -> str:
    """A URL nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def undisturbed(attempt: Callable[[], None], times: int = 4) -> None:
    """What must hold of times, unless a busy machine stalls every attempt."""
    for _ in range(times - 1):
        try:
            return attempt()
        except AssertionError:
            continue
    return attempt()
