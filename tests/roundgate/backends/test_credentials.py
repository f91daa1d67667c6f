"""Every kind of credential, for every kind of back end over HTTP: sent where it
belongs, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate import config
from roundgate.backends.http.config import RemoteConfig
from roundgate.backends.http.credential_config import CREDENTIALS
from roundgate.backends.http.messages import ServiceAnswer
from roundgate.backends.http.secrets import AnswerRedactor
from roundgate.backends.registry import KINDS
from roundgate.backends.secret_reading import SecretTexts
from roundgate.errors import BackendError, UnresolvedReference
from roundgate.settings import Reference, Secret
from roundgate.settings.process import Settings
from tests.support.asgi import STATE_KEY, Client, built, client
from tests.support.clocks import FixedClock
from tests.support.issuer import PUBLIC_URL, bearer, jwks, token
from tests.support.services import Service, answer, gateway_to, service

pytestmark = pytest.mark.usefixtures("own_aws_session")
SECRET = "s3cret of the/service+1"
TOKEN = "token-of-the-gateway"
GRANTED = answer(json.dumps({"access_token": TOKEN, "token_type": "bearer"}).encode())


def credential(kind: str, issuer: Service) -> dict[str, Any]:
    """One of each kind."""
    given: dict[str, dict[str, Any]] = {
        "bearer": {"bearer": SECRET},
        "basic": {"basic": f"ann:{SECRET}"},
        "header": {"header": "X-Key", "value": SECRET},
        "query": {"query": "key", "value": SECRET},
        "cookie": {"cookie": "session", "value": SECRET.replace(" ", "-")},
        "client_credentials": {
            "client_credentials": "gateway",
            "client_secret": SECRET,
            "token_url": f"{issuer.url}/token",
        },
        "sigv4": {"sigv4": "execute-api", "region": "eu-central-1"},
    }
    return given[kind]


def test_there_is_one_of_each_kind_here() -> None:
    assert credential("bearer", Service((), 0, 1))
    kinds = {name for name, kind in KINDS.items() if issubclass(kind.model(), RemoteConfig)}
    assert kinds >= {"http", "openapi"}


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {"/": {"get": {"operationId": "tool", "responses": {"200": {"description": "ok"}}}}},
}


@asynccontextmanager
async def guarded_gateway(
    folder: Path, kind: str, base_url: str, given: dict[str, Any], keys: Service
) -> AsyncIterator[Client]:
    """A gateway that asks callers for tokens, in front of a service with a credential."""
    (folder / "service.json").write_text(json.dumps(DOCUMENT))
    entry: dict[str, Any] = {"kind": kind, "name": "api", "prefix": "", "base_url": base_url}
    if kind == "http":
        entry["tools"] = [{"name": "tool", "path": "/", "description": "A tool."}]
    else:
        entry["document"] = "service.json"
    auth = {"issuer": "https://login.example.com/", "jwks_url": f"{keys.url}/jwks"}
    file = {"auth": auth, "backends": [{**entry, "credential": given}]}
    (folder / "gateway.json").write_text(json.dumps(file))
    app = built(
        config.load(folder / "gateway.json"), Settings(public_url=PUBLIC_URL, state_keys=STATE_KEY)
    )
    async with app.router.lifespan_context(app), client(app) as mcp:
        yield mcp


@pytest.mark.parametrize("kind", ["http", "openapi"])
@pytest.mark.parametrize("name", CREDENTIALS)
async def test_no_token_of_a_caller_and_no_credential_goes_where_it_does_not_belong(
    kind: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The service sees the credential and no token of the caller; the host it redirects to sees
    nothing; the caller and the log see no credential, whatever the service echoes."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-aws")
    caplog.set_level(logging.DEBUG)
    of_caller = token()
    echo = base64.b64encode(f"you: {SECRET}!".encode()).decode()
    async with (
        service(answer(jwks("ec"))) as keys,
        service(GRANTED) as issuer,
        service() as elsewhere,
        service(
            answer(json.dumps(f"{SECRET} {TOKEN} {echo}").encode()),
            answer(status="307 Temporary", location=f"{elsewhere.url}/"),
        ) as told,
    ):
        given = credential(name, issuer)
        async with guarded_gateway(tmp_path, kind, told.url, given, keys) as gate:
            headers: dict[str, str | None] = {**bearer(of_caller), "cookie": "a=of-the-caller"}
            said = [
                (await gate.post("tools/call", {"name": "tool"}, headers=headers)).text
                for _ in range(2)
            ]
    assert "redirects to another host" in said[1]
    assert elsewhere.requests == []
    seen = [request.decode() for one in (told, issuer) for request in one.requests]
    assert seen
    assert not any(of_caller in one or "of-the-caller" in one for one in seen)
    expected = {
        "client_credentials": f"Bearer {TOKEN}",
        "sigv4": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/",
        "basic": base64.b64encode(f"ann:{SECRET}".encode()).decode(),
        "query": "key=s3cret+of+the%2Fservice%2B1",
        "cookie": "session=s3cret-of-the/service+1",
    }
    assert all(expected.get(name, SECRET) in request.decode() for request in told.requests)
    if name not in ("sigv4", "cookie"):
        assert SECRET not in said[0]
        assert echo[8:-8] not in said[0]
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text + (said[0] if name == "client_credentials" else "")


def redacted(text: str, *secrets: str) -> str:
    body = AnswerRedactor(lambda: frozenset(secrets))(
        ServiceAnswer(200, "OK", "text/plain", text.encode())
    ).body
    return body.decode()


AROUND = [(before, after) for before in ("", "a", "ab", "abc", "ü") for after in ("", "x", "xy")]


@pytest.mark.parametrize("secret", ["s3cret??>>~~key", "eightabc", "schlüssel/?>"])
def test_base64_of_more_than_a_secret_is_redacted_so_that_nothing_of_it_is_left(
    secret: str,
) -> None:
    for before, after in AROUND:
        check_base64(before, secret, after)


def check_base64(before: str, secret: str, after: str) -> None:
    whole = f"{before}{secret}{after}".encode()
    for written in (base64.b64encode(whole).decode(), base64.urlsafe_b64encode(whole).decode()):
        for spelt in (
            written,
            written.rstrip("="),
            written.replace("+", "%2B").replace("/", "%2F"),
        ):
            left = redacted(f"<{spelt}>", secret)
            assert "[redacted]" in left
            rest = left.replace("[redacted]", "").strip("<>=")
            # what is left is of the neighbours alone
            assert len(rest) * 6 <= (len(before.encode()) + len(after.encode())) * 8 + 12


@pytest.mark.parametrize(
    "said",
    [
        "s3cret%20of%20the%2fservice%2b1",
        "s3cret+of+the%2Fservice%2B1",
        "s3cret of the\\/service+1",
        b"s3cret of the/service+1".hex(),
        "S3CRET OF THE/SERVICE+1".lower(),
    ],
)
def test_other_spellings_of_a_secret_are_redacted(said: str) -> None:
    assert redacted(f"a {said} b", SECRET) == "a [redacted] b"


def as_json(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


WAYS: list[Callable[[str], str]] = [
    str,
    as_json,
    lambda one: as_json(one).upper().replace("U", "u"),
    lambda one: as_json(one).replace("\\", "\\\\"),
    lambda one: "".join(f"%{byte:02x}" for byte in one.encode()),
    lambda one: "".join(f"%25{byte:02X}" for byte in one.encode()),
    lambda one: "".join(f"\\u0025{byte:02X}" for byte in one.encode()),
    lambda one: f"&#{ord(one)};",
    lambda one: f"&#x0{ord(one):X};",
    lambda one: f"&amp;#{ord(one)};",
    lambda one: f"\\u0026amp;#{ord(one)};",
    lambda one: html.escape(one),
    lambda one: html.escape(html.escape(one)),
    lambda one: json.dumps(one)[1:-1],
    lambda one: json.dumps(json.dumps(one)[1:-1])[1:-1],
    lambda one: {"+": "&plus;", "=": "&equals;"}.get(one, one),
    lambda one: f"\\x{ord(one):02x}" if ord(one) < 256 else one,
]
SECRETS = ["k+e&y<s>e'c=r/e\"t\\", "0123456789abcdef", "schlüssel€😀/?>", "s3cret of the/service+1"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("way", range(1, len(WAYS)))
def test_a_secret_is_redacted_whichever_of_its_characters_are_escaped(
    secret: str, way: int
) -> None:
    for which in (slice(None), slice(0, 1), slice(-1, None), slice(1, None, 2)):
        chosen = set(range(len(secret))[which])
        said = "".join(WAYS[way](c) if at in chosen else c for at, c in enumerate(secret))
        assert redacted(f"a {said} b", secret) == "a [redacted] b", said


@given(st.sampled_from(SECRETS), st.data())
def test_a_secret_is_redacted_in_any_mixture_of_escapes(secret: str, data: st.DataObject) -> None:
    said = "".join(data.draw(st.sampled_from(WAYS))(one) for one in secret)
    assert redacted(f"a {said} b", secret) == "a [redacted] b"


def test_text_with_other_escapes_stays_as_it_is() -> None:
    text = json.dumps({"a": "<p>1 &amp; 2 &#43; 3</p>", "b": "/x?y=%2B%20\n\u20ac"}) + "\\" * 50
    assert redacted(text, *SECRETS) == text


def test_a_secret_whose_signs_are_escaped_in_base64_is_redacted() -> None:
    secret = "key>>>???key>>>???"
    said = base64.b64encode(secret.encode()).decode().replace("/", "\\/").replace("+", "\\u002B")
    assert "\\" in said
    assert len(redacted(said, secret)) <= len("[redacted]") + 3


async def test_a_key_that_a_service_echoes_in_escapes_is_not_in_the_structured_result() -> None:
    key = "k+e&y<s>e'c=r.e.t"
    said = json.dumps({"key": key, key: 1}).replace("+", "\\u002B").replace("&", "\\u0026")
    async with (
        service(answer(said.encode())) as told,
        gateway_to(told.url, {}, credential={"header": "x-key", "value": key}) as gate,
    ):
        result = await gate.call("tool")
    assert result["structuredContent"] == {"key": "[redacted]", "[redacted]": 1}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
@pytest.mark.parametrize("around", [("", ""), ("a ", " b"), ("ü", "")])
def test_a_secret_in_a_text_as_windows_writes_it_is_redacted(
    encoding: str, around: tuple[str, str]
) -> None:
    said = SECRET.join(around).encode(encoding)
    answered = ServiceAnswer(200, "OK", "text/plain; charset=utf-16", said)
    left = AnswerRedactor(lambda: frozenset({SECRET}))(answered).body
    assert left.decode(encoding) == "[redacted]".join(around)


class Store:
    """Keeps one text, which a test may change, and counts how often it is read."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.reads = 0

    async def read(self, name: str) -> str:
        self.reads += 1
        await asyncio.sleep(0.01)
        if self.text is None:
            raise UnresolvedReference(f"{name} is not there", "put it there")
        return self.text

    async def aclose(self) -> None:
        return


async def test_a_hundred_calls_that_need_a_secret_have_it_read_once() -> None:
    store = Store("text")
    secrets = SecretTexts(at={"secret": store})
    secret = Secret((Reference("secret", "a"),))
    assert set(await asyncio.gather(*(secrets.text(secret) for _ in range(100)))) == {"text"}
    assert store.reads == 1


async def test_a_call_that_is_given_up_does_not_stop_the_read_for_the_others() -> None:
    store = Store("text")
    secrets = SecretTexts(at={"secret": store})
    secret = Secret((Reference("secret", "a"),))
    first = asyncio.create_task(secrets.text(secret))
    await asyncio.sleep(0)
    second = asyncio.create_task(secrets.text(secret))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "text"
    assert store.reads == 1


async def test_a_secret_that_cannot_be_read_is_not_asked_for_by_every_call() -> None:
    store = Store(None)
    secrets = SecretTexts(clock := FixedClock(), {"secret": store})
    secret = Secret((Reference("secret", "a"),))
    for _ in range(5):
        with pytest.raises(BackendError, match="cannot read its credential"):
            await secrets.text(secret)
    assert store.reads == 1
    store.text = "there now"
    clock.skip(11)
    assert await secrets.text(secret) == "there now"


async def test_a_file_is_read_again_with_the_next_request_and_serves_while_it_is_away(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text("first-token\n")
    given = {"bearer": Secret((Reference("file", str(file)),))}
    async with service() as told, gateway_to(told.url, {}, credential=given) as gate:
        await gate.call("tool")
        (tmp_path / "next").write_text("second-token\n")
        (tmp_path / "next").rename(file)
        await gate.call("tool")
        file.unlink()
        await gate.call("tool")
    assert [told.header("authorization", one) for one in range(3)] == [
        ["Bearer first-token"],
        ["Bearer second-token"],
        ["Bearer second-token"],
    ]


async def test_a_text_that_no_header_can_have_is_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("fine")
    given = {"bearer": Secret((Reference("file", str(file)),))}
    (tmp_path / "gateway.yaml").write_text("")
    async with service() as told, gateway_to(told.url, {}, credential=given) as gate:
        await gate.call("tool")
        file.write_text("a\r\nX-Evil: 1")
        text = await gate.text("tool")
    assert "X-Evil" not in text
    assert len(told.requests) == 1
