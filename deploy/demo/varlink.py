"""A client for the control sockets: Varlink's framing, one JSON object and a NUL, over a UNIX socket."""
import json
import socket


class VarlinkError(Exception):
    """The peer answered with an error, or nobody answered (name is then "")."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}" if name else message)
        self.name, self.message = name, message


def call(path, method, timeout=10.0, /, **parameters):
    """Call once and return the reply's parameters."""
    request = json.dumps({"method": method, "parameters": parameters}).encode() + b"\0"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(timeout)
            s.connect(str(path))
            s.sendall(request)
            reply = bytearray()
            while not reply.endswith(b"\0"):
                part = s.recv(65536)
                if not part:
                    raise VarlinkError("", f"{path}: the connection was closed")
                reply += part
    except OSError as e:
        raise VarlinkError("", f"{path}: {e}") from e
    answer = json.loads(reply[:-1])
    if "error" in answer:
        detail = answer.get("parameters") or {}
        raise VarlinkError(answer["error"], detail.get("message", json.dumps(detail)))
    return answer.get("parameters") or {}


def try_call(path, method, timeout=2.0, /, **parameters):
    """As call, but None when nobody answers or the answer is an error: for status lines."""
    try:
        return call(path, method, timeout, **parameters)
    except VarlinkError:
        return None
