"""A small chat server whose delays are known, for the load benchmark."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST, EACH = 0.06, 0.02  # seconds to the first token, and to each one after it
SLACK = 0.1  # seconds a busy machine may add
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "t"}]}


@dataclass
class Server:
    """Answers by the prompt: fail, cut, die, end, hang, uncounted, or an answer of max_completion_tokens."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)  # the clock's
    flying: int = 0
    most_flying: int = 0
    speculates: bool = False
    models: dict[str, Any] | None = field(default_factory=MODELS.copy)

    def metrics(self) -> str:
        """As a server writes them that drafts two tokens for every request and sees the first accepted."""
        n = len(self.bodies)
        counts = {"num_drafts": n, "num_draft_tokens": 2 * n, "num_accepted_tokens": n}
        lines = [f'vllm:spec_decode_{name}_total{{engine="0"}} {count}' for name, count in counts.items()]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{engine="0",position="{i}"}} {count}' for i, count in enumerate((n, 0))]
        return "\n".join(lines) + "\n" if self.speculates else ""


class Handler(BaseHTTPRequestHandler):
    """One connection to the server that ``made`` stands for."""

    protocol_version = "HTTP/1.1"
    made: Server
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None: ...
    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._whole(200, self.made.metrics())
        else:
            self._whole(200 if self.made.models else 404, json.dumps(self.made.models))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            self.made.bodies.append(body)
            self.made.arrived.append(time.perf_counter())
            self.made.flying += 1
            self.made.most_flying = max(self.made.most_flying, self.made.flying)
        asked = body["messages"][-1]["content"]
        try:
            if asked == "fail":
                self._whole(500, json.dumps({"error": {"message": "out of memory"}}))
            elif asked == "hang" or not self._stream(asked, body["max_completion_tokens"]):
                self.close_connection = True
                time.sleep(3 if asked == "hang" else 0)
        except ConnectionError:
            pass  # the client has gone
        finally:
            with self.lock:
                self.made.flying -= 1

    def _whole(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def _stream(self, asked: str, count: int) -> bool:
        """Whether the answer went out to its end."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        time.sleep(FIRST)
        self._event({"role": "assistant", "content": ""})  # as vLLM starts: with the first token
        for i in range(count):
            time.sleep(EACH if i else 0)
            if asked in ("cut", "die") and i == 2:
                break
            self._event({"content": f"{asked} {i};"})
        if asked == "cut":
            return False
        if asked == "die":
            self._chunk('data: {"error": {"message": "engine died", "code": 500}}\n\n')
        elif asked != "end":
            self._event({}, finish="length")
            if asked != "uncounted":
                self._event(usage={"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count})
        if asked != "end":
            self._chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return True

    def _event(self, delta: dict[str, Any] | None = None, finish: str | None = None, usage: Any = None) -> None:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        said = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices}
        self._chunk(f"data: {json.dumps({**said, 'usage': usage}, ensure_ascii=False)}\n\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class _Listener(ThreadingHTTPServer):
    request_queue_size = 200
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error: said on standard error it would be taken for a later command's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving() -> Iterator[Server]:
    """A server that listens."""
    made = Server()
    with _Listener(("127.0.0.1", 0), type("Bound", (Handler,), {"made": made})) as listener:
        made.url = f"http://127.0.0.1:{listener.server_port}"
        threading.Thread(target=listener.serve_forever, args=(0.01,)).start()
        yield made
        listener.shutdown()


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
