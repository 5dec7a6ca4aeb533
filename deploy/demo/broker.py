"""The two brokers the demo and the tests can run against: librdkafka's mock cluster, and a real Apache Kafka.

Both answer .address and come with the project's topics made, eight partitions each.
"""
import os
import signal
import socket
import struct

from procs import Child, StartError, free_port, free_port_pair, wait_until

TOPICS = ("redraft.traces", "redraft.rounds")
PARTITIONS = 8
HERE = os.path.dirname(os.path.abspath(__file__))


class MockBroker:
    """bin/redraft-mock-broker: the real protocol over TCP, 5 MiB a partition in memory, nothing on disk."""

    def __init__(self, family, program, folder):
        self.file = os.path.join(folder, "broker.address")
        self.child = family.start(Child("redraft-mock-broker", [program, "--address-file", self.file], os.path.join(folder, "broker.log")))
        self.address = wait_until("it wrote its address", 10, self._read, self.child)

    def _read(self):
        try:
            with open(self.file) as f:
                return f.read().strip()
        except OSError:
            return ""


class Kafka:
    """One Apache Kafka 4 node from Maven's jars. kill(), pause(), resume() and start() are for the fault tests."""

    def __init__(self, family, folder, note=lambda text: None, users=None, topics=TOPICS):
        """users: {name: password} makes .secure, the address of a listener with TLS, SASL and access rules; .ca is its certificate."""
        self.folder, self.family = folder, family
        self.port = free_port_pair()
        self.env = None
        if users:
            tls = free_port()
            self.secure, self.ca = f"127.0.0.1:{tls}", os.path.join(folder, "tls", "ca.pem")
            self.env = {**os.environ, "KAFKA_TLS_PORT": str(tls), "KAFKA_USERS": " ".join(f"{k}={v}" for k, v in users.items())}
        self.address = f"127.0.0.1:{self.port}"
        self.up = os.path.join(HERE, "..", "kafka", "kafka-up")
        note("starting Apache Kafka (the first time its jars are fetched)")
        self.child = None
        self.start(seconds=420)
        for topic in topics:
            create_topic(self.address, topic, PARTITIONS)

    def start(self, seconds=60):
        if self.child is None:
            self.child = self.family.start(Child("kafka", [self.up, self.folder, self.port, "run"], os.path.join(self.folder, "kafka.out"),
                                                  env=self.env))
        elif not self.child.running():
            self.child.start()
        for attempt in (1, 2, 3):
            try:
                wait_until("Kafka answered", seconds, lambda: ready(self.address), self.child, 0.3)
                return
            except StartError as e:  # a starved machine can make its own start-up time out
                if attempt == 3 or self.child.running():
                    raise StartError(f"{e}\n{self.log_tail()}") from e
                self.child.start()

    def log_tail(self):
        try:
            with open(os.path.join(self.folder, "broker.log"), encoding="utf-8", errors="replace") as f:
                return "".join(f.readlines()[-8:])
        except OSError:
            return ""

    def stop(self):
        self.child.stop(30)

    def kill(self):
        self.child.kill()

    def pause(self):
        self.child.signal(signal.SIGSTOP)

    def resume(self):
        self.child.signal(signal.SIGCONT)


def _string(s):
    return struct.pack(">h", len(s)) + s.encode()


def _request(address, key, version, body, timeout):
    """One request of Kafka's protocol, header version 1; returns the reply after its correlation number."""
    host, port = address.split(",")[0].rsplit(":", 1)
    message = struct.pack(">hhi", key, version, 7) + _string("redraft") + body
    with socket.create_connection((host, int(port)), timeout) as s:
        s.settimeout(timeout)
        s.sendall(struct.pack(">i", len(message)) + message)
        f = s.makefile("rb")
        size = struct.unpack(">i", f.read(4))[0]
        return f.read(size)[4:]


def ready(address, timeout=2.0):
    """Does a metadata request (version 1, all topics) name at least one broker?"""
    try:
        return struct.unpack(">i", _request(address, 3, 1, struct.pack(">i", -1), timeout)[:4])[0] >= 1
    except (OSError, struct.error):
        return False


def create_topic(address, name, partitions):
    """CreateTopics, version 2. A topic that is there already is left as it is."""
    topic = _string(name) + struct.pack(">ihii", partitions, 1, 0, 0)
    reply = _request(address, 19, 2, struct.pack(">i", 1) + topic + struct.pack(">i?", 10000, False), 15.0)
    at = 8 + 2 + struct.unpack(">h", reply[8:10])[0]
    code = struct.unpack(">h", reply[at:at + 2])[0]
    if code not in (0, 36):  # 36: the topic exists
        raise StartError(f"Kafka would not make topic {name}: error {code}")


OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}


def allow(address, user, kind, name, *operations):
    """CreateAcls, version 1: user may do these operations to one topic (kind 2) or the cluster (kind 4, name kafka-cluster)."""
    rules = [struct.pack(">b", kind) + _string(name) + struct.pack(">b", 3) + _string(f"User:{user}") + _string("*") + struct.pack(">bb", OPERATIONS[o], 3) for o in operations]
    reply = _request(address, 30, 1, struct.pack(">i", len(rules)) + b"".join(rules), 15.0)
    code = struct.unpack(">h", reply[8:10])[0]
    if code:
        raise StartError(f"Kafka would not let {user} {operations} {name}: error {code}")


def delete_topic(address, name):
    """DeleteTopics, version 1."""
    reply = _request(address, 20, 1, struct.pack(">i", 1) + _string(name) + struct.pack(">i", 10000), 15.0)
    at = 8 + 2 + struct.unpack(">h", reply[8:10])[0]
    code = struct.unpack(">h", reply[at:at + 2])[0]
    if code:
        raise StartError(f"Kafka would not delete topic {name}: error {code}")


def delete_records(address, name, before):
    """DeleteRecords, version 0: of each partition what is before an offset, -1 = all. As retention does, at a time of our choosing."""
    parts = b"".join(struct.pack(">iq", p, offset) for p, offset in before.items())
    reply = _request(address, 21, 0, struct.pack(">i", 1) + _string(name) + struct.pack(">i", len(before)) + parts + struct.pack(">i", 10000), 15.0)
    at = 8 + 2 + struct.unpack(">h", reply[8:10])[0] + 4
    codes = [struct.unpack(">h", reply[at + 14 * i + 12:at + 14 * i + 14])[0] for i in range(len(before))]
    if any(codes):
        raise StartError(f"Kafka would not delete records of {name}: errors {codes}")


def set_quota(address, client_id, key, value):
    """AlterClientQuotas, version 0: of one client id, such as producer_byte_rate; value None takes it away."""
    entry = struct.pack(">i", 1) + _string("client-id") + _string(client_id) + struct.pack(">i", 1) + _string(key) + struct.pack(">d?", value or 0.0, value is None)
    reply = _request(address, 49, 0, struct.pack(">i", 1) + entry + struct.pack(">?", False), 15.0)
    code = struct.unpack(">h", reply[8:10])[0]
    if code:
        raise StartError(f"Kafka would not set {key} of {client_id}: error {code}")
