"""Reads a topic with kcat, an independent client: message by message, headers and binary values included."""
import subprocess
from dataclasses import dataclass


@dataclass
class Message:
    partition: int
    offset: int
    key: str
    headers: dict
    value: bytes


def read(brokers, topic, since=0.0, seconds=40):
    """Every message of the topic written since then (seconds of time.time()) to its end as of now."""
    out = subprocess.run(["kcat", "-b", brokers, "-C", "-t", topic, "-o", f"s@{int(since * 1000)}", "-e", "-q", "-f", "%p %o %S %K\\n%k\\n%h\\n%s"],
                         capture_output=True, timeout=seconds, check=True, stdin=subprocess.DEVNULL).stdout
    messages, at = [], 0
    while at < len(out):
        lines = []
        for _ in range(3):
            end = out.index(b"\n", at)
            lines.append(out[at:end])
            at = end + 1
        head, key, headers = lines
        partition, offset, size, _ = (int(x) for x in head.split())
        pairs = dict(h.split("=", 1) for h in headers.decode().split(",") if "=" in h)
        messages.append(Message(partition, offset, key.decode(), pairs, out[at:at + size]))
        at += size
    return messages


def produce(brokers, topic, value, key="k"):
    """One message with this value."""
    subprocess.run(["kcat", "-b", brokers, "-P", "-t", topic, "-k", key, "-p", "0"], input=value, timeout=20, check=True, capture_output=True)
