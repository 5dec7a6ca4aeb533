"""An HTTP client of the chat API, streaming, with the standard library: what a user of the server would write.

One Answer a request, with the times of its first and last text and the counts that the server
reports under usage.redraft. Nothing is raised for a request that fails: ok is False and error says why.
"""
import http.client
import json
import time
from dataclasses import dataclass, field


@dataclass
class Answer:
    ok: bool = False
    status: int = 0
    error: str = ""
    text: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    versions: list = field(default_factory=list)
    rounds: int = 0
    proposing: int = 0  # rounds that proposed something
    proposed: int = 0
    accepted: int = 0
    sent: float = 0.0  # monotonic seconds
    first: float = 0.0
    done: float = 0.0
    longest_gap: float = 0.0  # between two pieces of text

    def same_text(self, other):
        return self.ok and other.ok and self.text == other.text and self.tokens == other.tokens and self.finish == other.finish

    def decode_tok_s(self):
        """Tokens after the first, over the time after the first."""
        return (self.tokens - 1) / (self.done - self.first) if self.tokens > 1 and self.done > self.first else 0.0


def _read_usage(a, usage):
    a.prompt_tokens = usage.get("prompt_tokens", 0)
    a.tokens = usage.get("completion_tokens", 0)
    r = usage.get("redraft") or {}
    a.versions = list(r.get("versions") or [])
    a.rounds, a.proposed, a.accepted = r.get("rounds", 0), r.get("proposed", 0), r.get("accepted", 0)
    a.proposing = r.get("proposing_rounds", a.rounds if a.proposed else 0)


def _read_stream(a, response):
    last = 0.0
    for raw in response:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            a.ok = True
            break
        chunk = json.loads(data)
        if "error" in chunk:
            a.error = str(chunk["error"].get("message", chunk["error"]))
            return
        if chunk.get("usage"):
            _read_usage(a, chunk["usage"])
        for choice in chunk.get("choices") or []:
            piece = (choice.get("delta") or {}).get("content")
            if piece:
                now = time.monotonic()
                if not a.text:
                    a.first = now
                elif now - last > a.longest_gap:
                    a.longest_gap = now - last
                last = now
                a.text += piece
            if choice.get("finish_reason"):
                a.finish = choice["finish_reason"]
    a.done = time.monotonic()
    if not a.ok:
        a.error = "the stream ended before [DONE]"


def chat(address, messages, max_tokens=80, temperature=0.0, seed=None, top_p=None, domain=None, conversation=None,
         draft=True, trace=True, timeout=120.0, headers=None, model=None):
    """Send one chat request to address ("127.0.0.1:8080") and read its stream to the end. model may be left out: a server has one."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": temperature, "stream": True,
            "stream_options": {"include_usage": True}}
    if model:
        body["model"] = model
    if seed is not None:
        body["seed"] = seed
    if top_p is not None:
        body["top_p"] = top_p
    head = {"Content-Type": "application/json", **(headers or {})}
    if domain:
        head["X-Redraft-Domain"] = domain
    if conversation:
        head["X-Redraft-Conversation"] = conversation
    if not draft:
        head["X-Redraft-Draft"] = "off"
    if not trace:
        head["X-Redraft-Trace"] = "off"
    a = Answer(sent=time.monotonic())
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
        response = connection.getresponse()
        a.status = response.status
        if response.status != 200:
            a.error = f"HTTP {response.status}: {response.read(2000).decode('utf-8', 'replace')}"
        else:
            _read_stream(a, response)
    except (OSError, http.client.HTTPException, ValueError) as e:
        a.error = f"{type(e).__name__}: {e}"
    finally:
        connection.close()
    return a


def get(address, path, timeout=5.0):
    """(status, text) of a GET; status 0 when nobody answers."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as e:
        return 0, str(e)
    finally:
        connection.close()
