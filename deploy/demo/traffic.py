"""The demo's clients: a few workers that send real prompts over HTTP, one domain at a time.

Three requests of four are greedy, the fourth is sampled with a seed, so every answer can be repeated. A plan
says which domain is asked when; each finished request is kept with what it asked, for the
comparison with plain decoding afterwards.
"""
import threading
import time
from dataclasses import dataclass

import client
import prompts as prompts_module


@dataclass
class Sent:
    number: int
    domain: str
    prompt: prompts_module.Prompt
    params: dict
    answer: client.Answer
    at: float  # seconds since the traffic began, when it ended
    during: str = ""  # the step of the demo it ran in

    def drafted(self):
        return self.answer.ok and self.answer.proposing > 0


def params_of(number, max_tokens):
    if number % 4 == 3:
        return {"max_tokens": max_tokens, "temperature": 0.7, "top_p": 0.95, "seed": 1000 + number}
    return {"max_tokens": max_tokens, "temperature": 0.0}


class Traffic:
    """start(), set_domain() as often as wanted, stop(). on_done(sent) is called from the worker threads under the lock."""

    def __init__(self, address, library, workers=5, max_tokens=80, on_done=lambda sent: None):
        self.address, self.library, self.max_tokens, self.on_done = address, library, max_tokens, on_done
        self.next = {domain: 0 for domain in library}
        self.number = 0
        self.domain = next(iter(library))
        self.during = ""
        self.sent = []
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=self._work, name=f"client-{i}", daemon=True) for i in range(workers)]

    def start(self):
        self.began = time.monotonic()
        for t in self.threads:
            t.start()
        return self

    def set_domain(self, domain):
        with self.lock:
            self.domain = domain

    def set_during(self, step):
        with self.lock:
            self.during = step

    def stop(self, seconds=120):
        """Lets running requests finish."""
        self.ending.set()
        for t in self.threads:
            if t.ident:
                t.join(seconds)

    def count(self):
        with self.lock:
            return len(self.sent)

    def snapshot(self):
        with self.lock:
            return list(self.sent)

    def take(self):
        """The next prompt of the domain that is being asked now: (number, domain, prompt, parameters)."""
        with self.lock:
            domain = self.domain
            ring = self.library[domain]
            prompt = ring[self.next[domain] % len(ring)]
            self.next[domain] += 1
            number = self.number
            self.number += 1
        return number, domain, prompt, params_of(number, self.max_tokens)

    def _work(self):
        while not self.ending.is_set():
            number, domain, prompt, params = self.take()
            during = self.during
            answer = client.chat(self.address, prompt.as_messages(), domain=domain, conversation=f"demo-{number}", **params)
            with self.lock:
                step = during if during == self.during else f"{during}+{self.during}"
                sent = Sent(number, domain, prompt, params, answer, time.monotonic() - self.began, step)
                self.sent.append(sent)
                self.on_done(sent)
            if not answer.ok:
                self.ending.wait(0.5)
