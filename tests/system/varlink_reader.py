"""An independent client, PyPI's varlink, at our control sockets. It reads each interface from the socket, checks what is sent against it, and what comes back.

On stdin: {socket: [[method, parameters, error], ...]}; error null: it must succeed, else the last word of the error that must come. On stdout:
{socket: {interface, methods: [all that are declared], said: [[method, reply or error]]}}. Beside the tests, not in them: our own client has the same name."""
import json
import sys

import varlink


def conforms(interface, declared, value, at):
    """Is value what the IDL says? declared: one of varlink.scanner's types."""
    kind = type(declared).__name__
    if kind == "_Maybe":
        return value is None or conforms(interface, declared.element_type, value, at)
    if kind == "_Array":
        assert isinstance(value, list), (at, "a list", value)
        return all(conforms(interface, declared.element_type, v, f"{at}[]") for v in value)
    if kind == "_Dict":
        assert isinstance(value, dict), (at, "a map", value)
        return all(conforms(interface, declared.element_type, v, f"{at}{{}}") for v in value.values())
    if kind == "_CustomType":
        return conforms(interface, interface.members[declared.name].type, value, at)
    if kind == "_Alias":
        return conforms(interface, declared.type, value, at)
    if kind == "_Struct":
        assert isinstance(value, dict), (at, "an object", value)
        extra = set(value) - set(declared.fields)
        assert not extra, (at, "not declared", extra)
        for name, field in declared.fields.items():
            assert name in value or type(field).__name__ == "_Maybe", (at, "missing", name)
            assert conforms(interface, field, value.get(name), f"{at}.{name}")
        return True
    if kind == "_Enum":
        assert value in declared.fields, (at, value)
        return True
    if kind == "float":
        assert isinstance(value, (int, float)) and not isinstance(value, bool), (at, "a number", value)
    elif kind == "_Object":
        assert isinstance(value, dict), (at, "an object", value)
    else:
        assert type(value).__name__ == kind, (at, kind, value)
    return True


def main():
    out = {}
    for path, calls in json.load(sys.stdin).items():
        client = varlink.Client(f"unix:{path}")
        name = next(n for n in client.get_interfaces() if n.startswith("io.redraft."))
        interface = client.get_interface(name)
        kinds = {n: type(m).__name__ for n, m in interface.members.items()}
        said = []
        for method, parameters, error in calls:
            with client.open(name) as c:
                try:
                    reply = getattr(c, method)(**parameters)
                except varlink.VarlinkError as e:
                    assert error and e.error() == f"{name}.{error}", (method, parameters, e.error(), e.parameters())
                    assert kinds.get(error) == "_Error", (error, "is not declared", name)
                    said.append([method, e.error()])
                    continue
            assert not error, (method, parameters, "succeeded", reply)
            assert conforms(interface, interface.members[method].out_type, reply, method)
            said.append([method, reply])
        out[path] = {"interface": name, "methods": sorted(n for n, k in kinds.items() if k == "_Method"), "said": said}
    json.dump(out, sys.stdout)


main()
