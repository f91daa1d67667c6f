"""A `tools/call` in several circumstances, over sockets: in an older revision, with a JWT, with
limits, among a hundred tools, in a view with search, and through its search. Only the gateway is measured. A plain
call is the reference.
"""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from bench.servers import Cores, Server, running, service
from bench.subjects import Subject
from bench.wire import OLDER_VERSION

ISSUER, AUDIENCE = "https://issuer.example", "bench"
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Row:
    """A server and its workload."""

    name: str
    server: Server
    workload: str
    headers: Mapping[str, str]


@contextmanager
def served(subject: Subject, cores: Cores) -> Iterator[list[Row]]:
    """Start all servers, yield their rows, and stop them at the end."""
    keys, signed = issued()
    with service(cores, {"BENCH_KEYS": keys}) as url, ExitStack() as stack:

        def up(serves: str, workload: str, headers: Mapping[str, str] = _NOTHING) -> Server:
            known = {"BENCH_SERVICE": url, "GATEWAY_PUBLIC_URL": "http://127.0.0.1"}
            made = running(subject, serves, workload, cores, known, headers=headers)
            return stack.enter_context(made)

        one_tool, hundred = up("one_tool", "call_add"), up("hundred_tools", "call_one_of_hundred")
        limited = up("limits", "call_add")
        verifying, searching = up("jwt", "call_add", signed), up("search", "call_one_of_hundred")
        yield [
            Row(subject.name, one_tool, "call_add", _NOTHING),
            Row(f"of {OLDER_VERSION}", one_tool, "call_add_in_session", _session(one_tool)),
            Row("with a JWT", verifying, "call_add", signed),
            Row("with limits of caller and tool", limited, "call_add", _NOTHING),
            Row("of 100 tools", hundred, "call_one_of_hundred", _NOTHING),
            Row("in a view with search", searching, "call_one_of_hundred", _NOTHING),
            Row("through that search", searching, "call_through_search", _NOTHING),
        ]


def _session(server: Server) -> Mapping[str, str]:
    """Open a session; return the header that identifies it."""
    opening = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": OLDER_VERSION,
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1.0.0"},
        },
    }
    media = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/mcp", json.dumps(opening), media)
    session = connection.getresponse().headers["Mcp-Session-Id"]
    connection.close()
    return {"Mcp-Session-Id": session}


def issued() -> tuple[str, Mapping[str, str]]:
    """Return an issuer's key set as JSON, and the header with a token signed by the issuer."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec
    from jwt.algorithms import ECAlgorithm

    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(ECAlgorithm.to_jwk(key.public_key())) | {"kid": "k", "alg": "ES256"}
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "s", "exp": int(time.time()) + 86_400}
    token = jwt.encode(claims, key, "ES256", headers={"kid": "k"})
    return json.dumps({"keys": [public]}), {"Authorization": f"Bearer {token}"}
