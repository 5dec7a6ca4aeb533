"""The HTTP API as users meet it: the openai client, its errors, and what is refused in which words."""
import http.client
import json

import openai
import pytest

import client


@pytest.fixture(scope="module")
def api(toy_server):
    with openai.OpenAI(base_url=f"http://{toy_server.address}/v1", api_key="none", max_retries=0, timeout=30) as c:
        yield c


@pytest.fixture(scope="module")
def model(api):
    return api.models.list().data[0].id


MESSAGES = [{"role": "user", "content": "What is the weather in Berlin?"}]


def raw(address, body, path="/v1/chat/completions", method="POST", headers=None):
    """(status, parsed body) of one request sent as given."""
    c = http.client.HTTPConnection(address, timeout=20)
    try:
        c.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        data = r.read()
        return r.status, json.loads(data) if data else None
    finally:
        c.close()


def assert_error(status, body, *words, expect=400):
    assert status == expect, (status, body)
    error = body["error"]
    assert set(error) >= {"message", "type", "param", "code"}, error
    for w in words:
        assert w.lower() in error["message"].lower(), error


def test_chat_and_stream_say_the_same(api, model):
    whole = api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0)
    parts, usage, finish = [], None, None
    for chunk in api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0, stream=True,
                                             stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        if chunk.usage:
            usage = chunk.usage
        for c in chunk.choices:
            parts.append(c.delta.content or "")
            finish = c.finish_reason or finish
    assert "".join(parts) == whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"
    assert finish == whole.choices[0].finish_reason and finish in ("stop", "length")
    assert usage.prompt_tokens == whole.usage.prompt_tokens > 0
    assert usage.completion_tokens == whole.usage.completion_tokens > 0
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_usage_redraft_is_there(api, model):
    r = api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
    mine = r.usage.model_extra["redraft"]
    assert set(mine) >= {"versions", "rounds", "proposed", "accepted"}
    assert mine["rounds"] > 0 and mine["proposed"] == 0 and mine["accepted"] == 0  # the store is empty


def test_seeded_sampling_repeats(api, model):
    ask = lambda seed: api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=1.0, top_p=0.9, seed=seed
                                                   ).choices[0].message.content
    assert ask(5) == ask(5)
    assert len({ask(s) for s in range(6)}) > 1


def test_completions(api, model):
    r = api.completions.create(model=model, prompt="The draft model proposes", max_tokens=12, temperature=0)
    parts = [c.choices[0].text for c in api.completions.create(model=model, prompt="The draft model proposes", max_tokens=12, temperature=0, stream=True)
             if c.choices]
    assert r.choices[0].text == "".join(parts) and r.usage.completion_tokens > 0


def test_stop_string(api, model):
    full = api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0).choices[0].message.content
    stop = full[len(full) // 2:len(full) // 2 + 3]
    cut = api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0, stop=[stop]).choices[0]
    assert cut.message.content == full[:full.index(stop)] and cut.finish_reason == "stop"


def test_logprobs_say_what_greedy_took(api, model):
    r = api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=5)
    entries = r.choices[0].logprobs.content
    assert len(entries) == r.usage.completion_tokens
    for e in entries:
        assert e.logprob <= 0 and e.top_logprobs[0].logprob == e.logprob == max(t.logprob for t in e.top_logprobs)
        assert [t.logprob for t in e.top_logprobs] == sorted((t.logprob for t in e.top_logprobs), reverse=True) and len(e.top_logprobs) == 5
    assert b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "replace").startswith(r.choices[0].message.content[:5])
    c = api.completions.create(model=model, prompt="The draft", max_tokens=8, temperature=0, logprobs=2).choices[0].logprobs
    assert len(c.tokens) == len(c.token_logprobs) == len(c.top_logprobs) == len(c.text_offset) == 8 and c.text_offset[0] == 0
    parts = [x.choices[0].logprobs.content for x in api.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=5, stream=True) if x.choices[0].logprobs]
    assert sum(parts, []) == entries


def test_bias_and_penalties_change_the_answer(api, model):
    ask = lambda **kw: api.completions.create(model=model, prompt="The draft model", max_tokens=24, temperature=0, extra_body={"return_token_ids": True, **kw.pop("extra", {})}, **kw
                                              ).choices[0].model_extra["token_ids"]
    plain = ask()
    assert plain[0] not in ask(logit_bias={str(plain[0]): -100})
    assert set(ask(logit_bias={"42": 100})) == {42}
    assert len(set(ask(presence_penalty=2, frequency_penalty=2))) >= len(set(plain))
    assert len(set(ask(extra={"repetition_penalty": 10}))) >= len(set(plain))
    assert ask(presence_penalty=0, extra={"repetition_penalty": 1}) == plain


def test_n_choices_several_prompts_and_echo(api, model):
    r = api.completions.create(model=model, prompt=["The draft", "The target"], n=3, max_tokens=6, seed=3, echo=True)
    assert [c.index for c in r.choices] == list(range(6))
    assert all(c.text.startswith(("The draft", "The target")[c.index // 3]) for c in r.choices)
    assert len({c.text for c in r.choices[:3]}) > 1
    alone = api.completions.create(model=model, prompt="The target", n=3, max_tokens=6, seed=3, echo=True)
    assert [c.text for c in alone.choices] == [c.text for c in r.choices[3:]]


def test_roles_accepted(api, model):
    for role in ("system", "developer", "user", "assistant"):
        messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        assert api.chat.completions.create(model=model, messages=messages, max_tokens=2).choices


def test_unknown_fields_are_ignored(toy_server):
    status, body = raw(toy_server.address, json.dumps({"messages": MESSAGES, "max_tokens": 2, "not_a_field": {"x": [1]}}))
    assert status == 200 and body["object"] == "chat.completion"


def test_wrong_model(api):
    with pytest.raises(openai.NotFoundError) as e:
        api.chat.completions.create(model="no-such-model", messages=MESSAGES, max_tokens=2)
    assert "no-such-model" in e.value.message


@pytest.mark.parametrize("body, words", [
    ('{"messages": [', ["json"]),
    ('[1, 2]', []),
    ('{"max_tokens": 3}', ["messages"]),
    ('{"messages": []}', ["messages"]),
    ('{"messages": "hello"}', ["messages"]),
    ('{"messages": [{"role": "wizard", "content": "x"}]}', ["wizard"]),
    ('{"messages": [{"role": "user"}]}', ["content"]),
    ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}', ["max_tokens"]),
    ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}', ["max_tokens"]),
    ('{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}', ["temperature"]),
    ('{"messages": [{"role": "user", "content": "x"}], "temperature": -1}', ["temperature"]),
    ('{"messages": [{"role": "user", "content": "x"}], "top_p": 7}', ["top_p"]),
    ('{"messages": [{"role": "user", "content": "x"}], "stream": "yes"}', ["stream"]),
    ('{"messages": [{"role": "user", "content": "\\ud800"}]}', []),
    ('{"messages": [{"role": "user", "content": "x"}], "n": 1000000}', ["n"]),
    ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "max_completion_tokens": 4}', ["max_completion_tokens"]),
    ('{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"999999": 1}}', ["logit_bias", "999999"]),
    ('{"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3}', ["logprobs"]),
    ('{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}}', ["response_format", "text"]),
    ('{"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}', ["tool_choice"]),
])
def test_bad_bodies_are_refused_in_openai_shape(toy_server, body, words):
    status, answer = raw(toy_server.address, body)
    assert_error(status, answer, *words)
    assert client.get(toy_server.address, "/health")[0] == 200


def test_too_long_a_prompt(api, model):
    with pytest.raises(openai.BadRequestError) as e:
        api.chat.completions.create(model=model, messages=[{"role": "user", "content": "weather " * 3000}], max_tokens=4)
    assert "512" in e.value.message  # the limit is named


def test_unknown_path_and_method(toy_server):
    status, body = raw(toy_server.address, None, "/v1/nothing", "GET")
    assert_error(status, body, expect=404)
    status, body = raw(toy_server.address, None, "/v1/chat/completions", "GET")
    assert_error(status, body, expect=405)


def test_deep_json_does_not_hurt(toy_server):
    status, body = raw(toy_server.address, '{"messages": ' + "[" * 100000 + "]" * 100000 + "}")
    assert_error(status, body)


def test_client_that_goes_away_is_forgotten(toy_server):
    c = http.client.HTTPConnection(toy_server.address, timeout=20)
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, "max_tokens": 400, "stream": True}), {"Content-Type": "application/json"})
    c.getresponse().read(10)
    c.sock.close()
    c.close()
    toy_server.wait("the request ended", 60, lambda: toy_server.status("serve").get("running") == 0)
    assert toy_server.chat().ok


def test_health_and_metrics(toy_server):
    assert client.get(toy_server.address, "/health")[0] == 200
    assert client.get(toy_server.address, "/healthz")[0] == 200
    toy_server.chat()
    status, text = client.get(toy_server.address, "/metrics")
    assert status == 200
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"):
        assert name in names, sorted(names)
    assert any(n.startswith("redraft_") for n in names), sorted(names)


def test_draft_off_header_and_concurrency_change_nothing(toy_server):
    from concurrent.futures import ThreadPoolExecutor
    texts = [f"Question {i}: what is the price of {i} items?" for i in range(12)]
    alone = [toy_server.chat(t) for t in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda t: toy_server.chat(t, draft=len(t) % 2 == 0), texts))
    for a, b in zip(alone, together):
        assert a.same_text(b), (a.error, b.error, a.text, b.text)
