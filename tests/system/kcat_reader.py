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


def read(brokers, topic, seconds=20):
    """Every message of the topic from its beginning to its end as of now."""
    out = subprocess.run(["kcat", "-b", brokers, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%p %o %S %K\\n%k\\n%h\\n%s"],
                         capture_output=True, timeout=seconds, check=True, stdin=subprocess.DEVNULL).stdout
    messages, at = [], 0
    while at < len(out):
        head, key, headers = out[at:].split(b"\n", 3)[:3]
        at += len(head) + len(key) + len(headers) + 3
        partition, offset, size, _ = (int(x) for x in head.split())
        pairs = dict(h.split("=", 1) for h in headers.decode().split(",") if "=" in h)
        messages.append(Message(partition, offset, key.decode(), pairs, out[at:at + size]))
        at += size
    return messages


def produce(brokers, topic, value, key="k"):
    """One message with this value."""
    subprocess.run(["kcat", "-b", brokers, "-P", "-t", topic, "-k", key, "-p", "0"], input=value, timeout=20, check=True, capture_output=True)
