"""The daemon's page, from redraftd alone: no server, no learner, no broker. It is whole, it says so, and nothing is changed without the token."""
import http.client
import json
import os

TOKEN = "page-test-token-0123456789"


def ask(stack, method, path, body=None, **headers):
    host, port = stack.metrics.split(":")
    c = http.client.HTTPConnection(host, int(port), timeout=10)
    c.request(method, path, body, headers)
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, r.headers, text


def first_event(stack):
    host, port = stack.metrics.split(":")
    c = http.client.HTTPConnection(host, int(port), timeout=10)
    c.request("GET", "/events")
    r = c.getresponse()
    assert r.status == 200 and r.headers["Content-Type"] == "text/event-stream"
    name, data = r.readline().decode().strip(), r.readline().decode().strip()
    c.close()
    return name, json.loads(data.removeprefix("data: "))


def test_page_of_a_daemon_alone(stack):
    stack.start_daemon()
    status, headers, page = ask(stack, "GET", "/")
    assert status == 200 and "<h1>redraft</h1>" in page
    assert "script-src 'self'" in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/page.js", "/page.css", "/icon.svg"):
        assert path in page and ask(stack, "GET", path)[0] == 200
    name, said = first_event(stack)
    assert name == "event: status" and said["status"]["serve"]["up"] is False and said["can_change"] is False
    past = json.loads(ask(stack, "GET", "/api/history")[2])
    assert past["fine"]["step_ms"] == 10000 and past["marks"] == []
    assert ask(stack, "POST", "/api/rollback", '{"live":0}')[0] == 403
    assert ask(stack, "POST", "/api/hold", "{}", Authorization=f"Bearer {TOKEN}")[0] == 403


def test_changes_need_the_token(stack):
    token = stack.dir / "token"
    token.write_text(TOKEN + "\n")
    os.chmod(token, 0o600)
    stack.start_daemon(web__token_file=token)
    good = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(stack, "POST", "/api/hold", "{}")[0] == 401
    assert ask(stack, "POST", "/api/hold", "{}", Authorization=f"Bearer {TOKEN}x")[0] == 401
    assert ask(stack, "POST", "/api/hold", "{}", Origin="http://elsewhere.example", **good)[0] == 403
    assert stack.status("daemon")["hold"] is False
    status, _, text = ask(stack, "POST", "/api/hold", '{"reason":"by hand"}', Origin=f"http://{stack.metrics}", **good)
    assert status == 200 and json.loads(text)["hold"] is True, text
    assert stack.status("daemon")["hold"] is True
    assert first_event(stack)[1]["status"]["hold"] is True
    assert ask(stack, "POST", "/api/release", "{}", **good)[0] == 200
    assert stack.status("daemon")["hold"] is False
    assert "audit: Hold by the page" in stack.logs() and TOKEN not in stack.logs()
