"""The front door as operators meet it: keys, both sockets, what health says while it loads, drains and ends."""
import http.client
import json
import signal
import socket
import threading
import time

import client
from test_api import raw

ASK = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4})


def auth(key):
    return {"Authorization": f"Bearer {key}"}


def state(address, path="/ready"):
    status, text = client.get(address, path)
    return status, json.loads(text)["status"] if status else None


def long_stream(stack, tokens=400, n=1):
    """A stream that is under way: (connection, response). 32 answers take the toy model many seconds."""
    c = http.client.HTTPConnection(stack.address, timeout=60)
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens, "n": n, "ignore_eos": True,
                                                          "stream": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200
    r.read(40)
    return c, r


def test_keys_are_asked_for_and_reread(stack):
    keys = stack.dir / "keys"
    keys.write_text("# ours\nfirst-key-000\n")
    stack.start_serve(api_keys_file=keys)
    assert raw(stack.address, ASK)[0] == 401
    status, body = raw(stack.address, ASK, headers=auth("wrong-key-000"))
    assert status == 401 and body["error"]["code"] == "invalid_api_key"
    assert raw(stack.address, ASK, headers=auth("first-key-000"))[0] == 200
    assert client.get(stack.address, "/metrics")[0] == 200
    keys.write_text("second-key-000\n")
    stack.wait("the file was read again", 60, lambda: raw(stack.address, ASK, headers=auth("second-key-000"))[0] == 200)
    assert raw(stack.address, ASK, headers=auth("first-key-000"))[0] == 401
    keys.write_text("")
    time.sleep(1.5)
    assert raw(stack.address, ASK, headers=auth("second-key-000"))[0] == 200


def test_loading_is_said(stack):
    stack.start_serve(wait=False)
    seen = set()
    stack.wait("the server is ready", 60, lambda: seen.add(state(stack.address)) or (200, "degraded") in seen, step=0.001)
    assert seen <= {(0, None), (503, "loading"), (200, "degraded")}, seen  # degraded: there is no draft


def test_drain_ends_what_runs_and_takes_nothing_new(stack):
    child = stack.start_serve(drain_s=30)
    c, r = long_stream(stack, n=12)
    child.signal(signal.SIGTERM)
    stack.wait("it says draining", 60, lambda: state(stack.address) == (503, "draining"), step=0.01)
    assert state(stack.address, "/live") == (200, "live")
    status, body = raw(stack.address, ASK)
    assert status == 503 and "shutting down" in body["error"]["message"]
    assert r.read().rstrip().endswith(b"data: [DONE]")  # to its end
    c.close()
    assert child.proc.wait(60) == 0


def test_a_drain_is_bounded(stack):
    child = stack.start_serve(drain_s=0.3)
    c, r = long_stream(stack, n=32)
    child.signal(signal.SIGTERM)
    assert child.proc.wait(60) == 0
    assert b"shutting down" in r.read()  # those that were cut hear why
    c.close()


def test_a_second_signal_ends_a_drain(stack):
    child = stack.start_serve(drain_s=600)
    c, _ = long_stream(stack, n=32)
    child.signal(signal.SIGTERM)
    stack.wait("it says draining", 60, lambda: state(stack.address) == (503, "draining"), step=0.01)
    child.signal(signal.SIGTERM)
    assert child.proc.wait(60) == 0
    c.close()


def test_deadline(stack):
    stack.start_serve()
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "ignore_eos": True})
    status, answer = raw(stack.address, body, headers={"X-Redraft-Deadline-Ms": "20"})
    assert status == 504 and answer["error"]["code"] == "deadline_exceeded"
    stack.wait("its place is free", 60, lambda: stack.status("serve").get("running") == 0)


def test_hostile_clients_do_not_disturb_others(stack):
    stack.start_serve()
    host, port = stack.address.split(":")
    stop = threading.Event()

    def attack(text):
        while not stop.is_set():
            try:
                with socket.create_connection((host, int(port)), timeout=5) as s:
                    s.settimeout(0.2)
                    s.sendall(text)
                    s.recv(1000)
            except OSError:
                pass

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    attacks = [b"\x00" * 5000, head + b"Content-Length: 8000000\r\n\r\n" + b"x" * 100000, head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
               head + b"Content-Length: 20000\r\n\r\n" + b"[" * 20000, head + b"A: " + b"y" * 60000, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 500]
    threads = [threading.Thread(target=attack, args=(a,)) for a in attacks]
    alone = stack.chat("What is the price?", temperature=0)
    for t in threads:
        t.start()
    together = [stack.chat("What is the price?", temperature=0) for _ in range(5)]
    stop.set()
    for t in threads:
        t.join()
    assert alone.ok and all(a.same_text(alone) for a in together), [a.error for a in together]
    assert client.get(stack.address, "/health")[0] == 200
