"""Other people's clients against the real model: curl, node's openai client, and an agent framework that runs a tool loop.

The model has 135 million parameters, so what it says is not judged, but that calls are asked for, found, answered and used."""
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import ROOT, Stack

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


@pytest.fixture(scope="module")
def real_server(real_model, toy, tmp_path_factory):
    s = Stack(tmp_path_factory.mktemp("real"), toy)
    try:
        s.start_serve(model=real_model, max_context=1024, model_name="smol", threads=0, listen_unix=s.dir / "http.sock")
        yield s
    finally:
        s.close()


def curl(*argv, body=None):
    r = subprocess.run(["curl", "-sS", "-m", "60", *argv], input=body, capture_output=True, text=True, check=True)
    return r.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_over_both_sockets(real_server):
    body = json.dumps({"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0})
    local = ["--unix-socket", str(real_server.dir / "http.sock")]
    answers = [json.loads(curl(*where, "-d", "@-", f"http://{real_server.address}/v1/chat/completions", body=body)) for where in ([], local)]
    assert answers[0]["choices"] == answers[1]["choices"] and answers[0]["usage"]["completion_tokens"] == 8
    lines = curl("-N", "-d", "@-", f"http://{real_server.address}/v1/chat/completions", body=json.dumps({**json.loads(body), "stream": True})).split("\n\n")
    assert all(line.startswith("data: ") for line in lines if line) and lines[-2] == "data: [DONE]"
    text = "".join((json.loads(line[6:])["choices"][0]["delta"].get("content") or "") for line in lines[:-2])
    assert text == answers[0]["choices"][0]["message"]["content"]
    big = json.dumps({"prompt": "a " * 700000, "max_tokens": 1})  # over 1 MiB: curl asks with Expect: 100-continue
    assert "context" in json.loads(curl("-d", "@-", f"http://{real_server.address}/v1/completions", body=big))["error"]["message"]


def test_node_openai(real_server):
    folder = Path(subprocess.run([ROOT / "deploy" / "install-deps", "--npm"], capture_output=True, text=True, check=True).stdout.strip())
    if not shutil.which("node") or not (folder / ".done").exists():
        pytest.skip("node or its openai client is not there: deploy/install-deps test fetches it where npm is")
    with tempfile.TemporaryDirectory(dir=folder) as d:  # beside node_modules, where its imports are looked up
        script = Path(shutil.copy(ROOT / "tests" / "system" / "openai.mjs", d))
        r = subprocess.run(["node", str(script), f"http://{real_server.address}/v1", "smol"], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    models, whole, stream, call, error = map(json.loads, r.stdout.splitlines())
    assert models == {"models": ["smol"]}
    assert whole["text"] == stream["text"] and whole["tokens"] == stream["tokens"] == whole["logprobs"] == 12
    assert call == {"call": "get_weather", "arguments": call["arguments"], "finish": "tool_calls"} and isinstance(call["arguments"]["city"], str)
    assert error == {"error": "BadRequestError", "status": 400, "param": "temperature"}


def test_agent_runs_a_tool_loop(real_server):
    ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class CallFirst(AbstractCapability):
        def get_model_settings(self):
            return lambda ctx: {"tool_choice": "required" if ctx.run_step <= 1 else "auto"}

    asked = []
    provider = OpenAIProvider(base_url=f"http://{real_server.address}/v1", api_key="none")
    agent = ai.Agent(OpenAIChatModel("smol", provider=provider), system_prompt="You are a helpful assistant.",
                     model_settings={"temperature": 0, "max_tokens": 40}, capabilities=[CallFirst()])

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Current weather of a city."""
        asked.append(city)
        return "rainy, 9 degrees"

    result = agent.run_sync("What is the weather in Berlin?")
    assert asked == ["Berlin"], asked
    assert "9 degrees" in result.output, result.output  # what the tool said came back in the second round
    assert result.usage.requests == 2
