"""Clients that mean harm, over raw sockets: seeded, many at a time, of every kind we could think of.

What must hold: the server lives; whoever sent a whole request gets one HTTP answer or a closed connection, within seconds; an answer to nonsense is
4xx with one sentence, never 500; and honest clients beside them see the same answers as before.
hostile(address, seconds, seed) returns what was seen; the caller judges by faults().
"""
import json
import random
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

PATIENCE = 30  # seconds until a whole request must have been answered, on a machine that is busy
GOOD = {"messages": [{"role": "user", "content": "What is the weather in Berlin?"}], "max_tokens": 4, "temperature": 0}


def post(body, path="/v1/chat/completions", headers=()):
    """A request as bytes, whole and right in its framing."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*chunks, end=b"0\r\n\r\n"):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + b"".join(chunks) + end


# Each kind: rng -> (bytes to send, "whole" when an answer or a close is due, else "part": the client goes away by itself)

def noise(rng):
    return rng.randbytes(rng.randint(1, 4000)) + b"\r\n\r\n", "part"


def mutated(rng):
    raw = bytearray(post(GOOD))
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(len(raw))
        raw[at:at + rng.choice((0, 1, 1, 4))] = rng.choice((b"", b"\0", b"\xff", b"\r\n", b"{", b'"', b":", rng.randbytes(2), b"9" * 30))
    return bytes(raw), "part"


def big_headers(rng):
    return rng.choice((
        post(GOOD, headers=["X-Big: " + "a" * rng.choice((8000, 70000, 300000))]),
        post(GOOD, headers=[f"X-{i}: {i}" for i in range(rng.choice((100, 3000)))]),
        b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        post(GOOD, headers=["X-Redraft-Conversation: " + "c" * 20000, "Authorization: Bearer " + "k" * 20000]),
    )), "whole"


def framing(rng):
    body = json.dumps(GOOD).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    lengths = rng.choice((b"Content-Length: -1", b"Content-Length: 99999999999999999999999", b"Content-Length: 10\r\nContent-Length: 20", b"Content-Length: 0x10",
                          b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Content-Length: 1e3", b"Content-Length:"))
    return head + lengths + b"\r\n\r\n" + body, "part"


def bad_chunks(rng):
    body = json.dumps(GOOD).encode()
    size = f"{len(body):x}\r\n".encode()
    return rng.choice((
        chunked(b"zz\r\n" + body), chunked(b"ffffffffffffffff\r\n" + body), chunked(b"-5\r\n" + body), chunked(size + body + b"XX"),
        chunked(size + body + b"\r\n", end=b"0\r\nEvil: " + b"x" * 100000 + b"\r\n\r\n"), chunked(b"1;" + b"e" * 100000 + b"\r\n{\r\n"),
        chunked(*[b"1\r\n \r\n"] * 20000), chunked(b"\r\n\r\n\r\n"),
    )), "part"


def deep(rng):
    n = rng.choice((100, 3000, 200000))
    return post(rng.choice((b"[" * n, b'{"a":' * n, b'{"messages":' + b"[" * n + b"]" * n + b"}", b'{"messages":[{"role":"user","content":' + b"[" * n + b"]" * n + b"}]}"))), "whole"


def bytes_in_text(rng):
    bad = rng.choice((b"\0", b"\\u0000", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\xf4\x90\x80\x80", b"\x01\x1f"))
    body = b'{"messages":[{"role":"user","content":"a' + bad + b'b"}],"max_tokens":2,"stop":["' + bad + b'"]}'
    return post(body), "whole"


def parameters(rng):
    wrong = rng.choice((
        {"n": 10**9}, {"n": -1}, {"n": 0}, {"n": 1.5}, {"max_tokens": -5}, {"max_tokens": 10**18}, {"max_tokens": "many"}, {"temperature": "hot"}, {"temperature": -1},
        {"temperature": 1e300}, {"top_p": 0}, {"top_p": 7}, {"top_k": -3}, {"min_p": 2}, {"stop": ["x" * 100000]}, {"stop": ["a"] * 5000}, {"stop": 5}, {"stop": [""]},
        {"logit_bias": {"999999999": 5}}, {"logit_bias": {"-1": 5}}, {"logit_bias": {"a": "b"}}, {"logit_bias": {str(i): 1 for i in range(3000)}}, {"logprobs": 7},
        {"top_logprobs": 1000}, {"max_tokens": 5, "max_completion_tokens": 6}, {"stream": "yes"}, {"stream_options": 3}, {"seed": 1e400}, {"seed": "s"}, {"messages": []},
        {"messages": "hi"}, {"messages": [{}]}, {"messages": [{"role": "king", "content": "x"}]}, {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"messages": [{"role": "user", "content": "a " * 200000}]},
        {"messages": [{"role": "user", "content": "x"}] * 20000}, {"tools": "hammer"}, {"tools": [{}] * 5000}, {"response_format": {"type": "json_schema"}},
        {"frequency_penalty": 1e9}, {"presence_penalty": "x"}, {"model": "\0"}, {"model": "other" * 10000}, {"user": {"a": 1}}, {"tool_choice": "maybe"},
    ))
    if rng.random() < 0.25:
        ids = rng.choice(([999999999], [-1], [1.5], ["a", 1], [], [[1], [10**12]], list(range(100000)), [[1]] * 1000))
        return post({"prompt": ids, "max_tokens": 2}, "/v1/completions"), "whole"
    return post({**GOOD, **wrong}), "whole"


def pipelined(rng):
    return b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * rng.choice((2, 50, 2000)) + post(GOOD), "part"


def lines(rng):
    first = rng.choice((b"GET / HTTP/9.9", b"GET /", b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"FOO /v1/models HTTP/1.1", b"POST /v1/nothing HTTP/1.1", b"GET //..//.. HTTP/1.1",
                        b"DELETE /v1/chat/completions HTTP/1.1", b"GET http://x/ HTTP/1.1", b"GET /v1/models/%00%ff%zz HTTP/1.1", b"HEAD /metrics HTTP/1.1", b"GET /\xff\xfe HTTP/1.1",
                        b"POST /v1/chat/completions HTTP/1.0", b" GET /health HTTP/1.1", b"GET\t/health\tHTTP/1.1", b"PRI * HTTP/2.0"))
    rest = rng.choice((b"Host: x\r\n", b"", b"Host : x\r\n", b": empty\r\n", b"A\r\n B\r\n", b"X: \0\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n"))
    return first + b"\r\n" + rest + b"Connection: close\r\n\r\n", "part"


def cut_short(rng):
    raw = post(GOOD)
    return raw[:rng.randrange(len(raw))], "part"


def huge_body(rng):
    n = rng.choice((9, 20)) * 2**20
    return post(b'{"messages":[{"role":"user","content":"' + b"a" * n + b'"}]}'), "part"


KINDS = (noise, mutated, mutated, mutated, big_headers, framing, framing, bad_chunks, deep, bytes_in_text, parameters, parameters, parameters, parameters, pipelined, lines,
         lines, cut_short, huge_body)


@dataclass
class Seen:
    sent: dict = field(default_factory=dict)      # kind: requests
    statuses: dict = field(default_factory=dict)  # status, or "closed", "reset", "left": count
    wrong: list = field(default_factory=list)

    def faults(self, least=200):
        out = list(self.wrong[:10])
        if len(self.wrong) > 10:
            out.append(f"and {len(self.wrong) - 10} more")
        total = sum(self.sent.values())
        if total < least or len(self.sent) < len(set(KINDS)):
            out.append(f"only {total} requests of {len(self.sent)} kinds were sent")
        return out


def send(s, raw, rng):
    """All at once, or in pieces with pauses."""
    if rng.random() < 0.7 or len(raw) > 100000:
        s.sendall(raw)
        return
    cuts = sorted(rng.sample(range(len(raw) + 1), min(len(raw), rng.randint(1, 8))))
    for a, b in zip([0, *cuts], [*cuts, len(raw)]):
        s.sendall(raw[a:b])
        time.sleep(rng.uniform(0, 0.05))


def receive(s, end):
    """Everything until the server closes or the time is over: (bytes, closed)."""
    out = b""
    while time.monotonic() < end:
        s.settimeout(max(0.01, end - time.monotonic()))
        part = s.recv(65536)
        if not part:
            return out, True
        if len(out) < 2**20:
            out += part
    return out, False


def judge(kind, raw, due, reply, closed):
    """What is wrong with a reply, or ""."""
    shown = f"{kind}, {raw[:120]!r}..."
    if due == "whole" and not reply and not closed:
        return f"no answer in {PATIENCE} s to {shown}"
    if not reply:
        return ""
    m = re.match(rb"HTTP/1\.[01] (\d{3}) ", reply)
    if not m:
        return f"not HTTP: {reply[:80]!r} to {shown}"
    status = int(m[1])
    if status >= 500 and status not in (501, 503, 505):
        return f"status {status} to {shown}: {reply[-200:]!r}"
    if 400 <= status < 500 and due == "whole":
        body = reply.split(b"\r\n\r\n", 1)[-1]
        try:
            message = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return "" if b"json" not in reply.split(b"\r\n\r\n", 1)[0].lower() else f"status {status} without an error object to {shown}: {body[:200]!r}"
        if not message or len(message) > 500 or "\n" in message:
            return f"status {status} is not one sentence to {shown}: {message[:300]!r}"
    return ""


def attack(address, seen, lock, rng, ending):
    host, port = address.rsplit(":", 1)
    while not ending.is_set():
        kind = rng.choice(KINDS)
        raw, due = kind(rng)
        outcome, reply, closed = "left", b"", False
        s = socket.socket()
        try:
            s.settimeout(10)
            s.bind(("127.0.0.66", 0))  # an address of its own, so that limits by address do not hit the honest
            s.connect((host, int(port)))
            if rng.random() < 0.05:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset when it goes
            send(s, raw, rng)
            reply, closed = receive(s, time.monotonic() + (PATIENCE if due == "whole" else rng.uniform(0.05, 1.0)))
            outcome = "closed" if closed else "left"
        except (TimeoutError, BlockingIOError):
            outcome = "left"
        except OSError:
            outcome, closed = "reset", True
        finally:
            s.close()
        m = re.match(rb"HTTP/1\.[01] (\d{3}) ", reply)
        wrong = judge(kind.__name__, raw, due, reply, closed)
        with lock:
            seen.sent[kind.__name__] = seen.sent.get(kind.__name__, 0) + 1
            key = m[1].decode() if m else outcome
            seen.statuses[key] = seen.statuses.get(key, 0) + 1
            if wrong:
                seen.wrong.append(wrong)


def hostile(address, seconds, seed=1, clients=32):
    seen, lock, ending = Seen(), threading.Lock(), threading.Event()
    threads = [threading.Thread(target=attack, args=(address, seen, lock, random.Random(f"{seed}/{i}"), ending), daemon=True) for i in range(clients)]
    for t in threads:
        t.start()
    ending.wait(seconds)
    ending.set()
    for t in threads:
        t.join(PATIENCE + 20)
    return seen
