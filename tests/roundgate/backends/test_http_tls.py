"""The gateway in front of services with certificates of a private authority, which
may want to see its own."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import ConfigError
from tests.support.authority import Authority
from tests.support.services import answer, gateway_to, service


def serving(
    authority: Authority, *, wants: Path | None = None, address: str = "127.0.0.1"
) -> ssl.SSLContext:
    """What a service has; `wants` is the authority whose certificates it asks for."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("service", addresses=(address,)))
    if wants is not None:
        context.load_verify_locations(wants)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


async def asked(served: ssl.SSLContext, **backend: Any) -> str:
    async with (
        service(answer(b'"good"'), tls=served) as told,
        gateway_to(told.url, {}, **backend) as gate,
    ):
        return await gate.text("tool")


async def test_a_private_authority_is_believed_where_it_is_named_and_nowhere_else(
    authority: Authority, other: Authority
) -> None:
    served = serving(authority)
    assert await asked(served, tls={"ca": str(authority.ca)}) == "good"
    assert await asked(served, tls={"ca": authority.ca.read_text()}) == "good"
    for believed in ({}, {"tls": {"ca": str(other.ca)}}):
        assert "certificate" in await asked(served, **believed)


async def test_a_service_that_wants_a_certificate_gets_the_gateways(authority: Authority) -> None:
    served = serving(authority, wants=authority.ca)
    ca = str(authority.ca)
    cert, key = authority.issue("gateway")
    locked_cert, locked_key = authority.issue("locked", password=b"pass word")
    together = cert.read_text() + key.read_text()
    locked = {"cert": str(locked_cert), "key": str(locked_key), "key_password": "pass word"}
    shown: list[dict[str, str]] = [
        {"cert": str(cert), "key": str(key)},
        {"cert": together},
        {"cert": cert.read_text(), "key": key.read_text()},
        locked,
    ]
    for one in shown:
        assert await asked(served, tls={"ca": ca, **one}) == "good"
    assert "the connection ended before" in await asked(served, tls={"ca": ca})


async def test_a_name_that_the_certificate_does_not_have_is_refused(authority: Authority) -> None:
    tls = {"ca": str(authority.ca)}
    elsewhere = serving(authority, address="127.0.0.9")
    async with service(tls=elsewhere) as told, gateway_to(told.url, {}, tls=tls) as gate:
        text = await gate.text("tool")
    assert text.endswith("its certificate is not trusted: IP address mismatch)")
    assert told.requests == []


async def test_what_cannot_be_used_is_a_problem_at_its_place_before_anything_is_served(
    authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("one")
    _, wrong = authority.issue("two")
    _, locked = authority.issue("three", password=b"x")
    (tmp_path / "empty").write_text("nothing")
    bad: dict[str, tuple[dict[str, str], str]] = {
        "ca": ({"ca": "not-there.pem"}, "not-there.pem: No such file"),
        "ca ": ({"ca": str(tmp_path / "empty")}, "has no certificate"),
        "cert": ({"cert": str(cert), "key": str(wrong)}, "does not match the key"),
        "cert ": ({"cert": str(cert), "key": str(locked)}, "is encrypted"),
        "cert  ": ({"cert": str(key)}, "does not match the key"),
        "key": ({"cert": str(cert), "key": "s3cret\nof many lines"}, "it: "),
    }
    for place, (tls, told_so) in bad.items():
        with pytest.raises(ConfigError) as caught:
            async with gateway_to("https://127.0.0.1:1", {}, tls=tls):
                pass
        (problem,) = caught.value.problems
        assert problem.path == f"backends[0].tls.{place.strip()}"
        assert told_so in problem.message
        assert "s3cret" not in str(caught.value)
