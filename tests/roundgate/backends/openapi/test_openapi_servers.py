"""Requests carry credentials: a document alone does not decide where they go."""

from __future__ import annotations

from typing import Any

import pytest

from roundgate.backends.openapi.documents import UnusableOperation
from roundgate.backends.openapi.servers import Servers
from roundgate.net.addresses import canonical_host, canonical_origin, is_public

FILE = "file:///work/api.json"
URL = "https://api.example.com/v1/openapi.json"
INSIDE = [
    "http://169.254.169.254",
    "http://10.0.0.1",
    "http://2130706433",
    "http://0x7f.1",
    "http://0177.0.0.1",
    "http://127.1:8080",
    "http://[::ffff:127.0.0.1]",
    "http://[::ffff:a9fe:a9fe]",
    "http://[64:ff9b::10.0.0.1]",
    "http://[64:ff9b:1::10.0.0.1]",
    "http://[::127.0.0.1]",
    "http://router.home.arpa",
    "http://[2002:7f00:1::]",
    "http://[::1]",
    "http://[fd00:ec2::254]",
    "http://0",
    "http://localhost",
    "http://localhost.",
    "http://LOCALHOST:80",
    "http://api.localhost",
    "http://metadata.google.internal",
    "http://metadata.google.internal.",
    "http://database",
    "http://\uff11\uff12\uff17.0.0.1",
    "http://224.0.0.1",
    "http://100.64.0.1",
]
OUTSIDE = ["https://api.example.com", "http://93.184.216.34", "https://[2606:4700::1111]:8443"]


def chosen(url: str, document: str = FILE, **settings: Any) -> str:
    return Servers(settings.pop("base_url", None), **settings).of(None, [{"url": url}], document)


@pytest.mark.parametrize("url", INSIDE)
def test_no_file_and_no_url_names_an_address_that_is_not_of_the_internet(url: str) -> None:
    assert not is_public(url)
    for document in (FILE, URL, "http://127.0.0.2:8000/openapi.json"):
        with pytest.raises(UnusableOperation, match="its server is at") as caught:
            chosen(url, document)
        assert caught.value.remedy.endswith("to `origins`, or set `base_url`")


@pytest.mark.parametrize("url", [*INSIDE, *OUTSIDE])
def test_what_the_configuration_names_is_served_however_it_is_spelt(url: str) -> None:
    for document in (FILE, URL):
        assert chosen(url, document, origins=[url]) == url
        assert chosen(url, document, origins=[canonical_origin(url)]) == url
        assert (
            chosen(url, document, base_url="https://here.example.com") == "https://here.example.com"
        )


@pytest.mark.parametrize("url", OUTSIDE)
def test_a_file_may_name_a_service_of_the_internet(url: str) -> None:
    assert chosen(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "/v2",
        "https://api.example.com/v2",
        "https://API.example.com:443/v2",
        "https://api.example.com./",
    ],
)
def test_a_document_from_a_url_may_name_its_own_origin(url: str) -> None:
    assert canonical_origin(chosen(url, URL)) == "https://api.example.com"


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.com",
        "https://api.example.com:8443",
        "http://api.example.com",
        "https://api.example.com.evil.example",
        "//evil.example",
    ],
)
def test_a_document_from_a_url_may_name_no_other_origin(url: str) -> None:
    with pytest.raises(
        UnusableOperation, match=r"and the document is from https://api\.example\.com"
    ):
        chosen(url, URL)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com@evil.example/",
        "https://evil.example\\@api.example.com/",
        "https://evil.example\\.api.example.com/",
        "https://api.example.com%2eevil.example/",
        "https://api.example.com:99999/",
        "https://api.example.com/../admin",
        "ftp://api.example.com",
    ],
)
def test_a_url_that_programs_read_in_two_ways_is_none(url: str) -> None:
    for document in (FILE, URL):
        with pytest.raises(UnusableOperation):
            chosen(url, document, origins=["https://*.example.com", "https://*.example"])


@pytest.mark.parametrize(
    ("url", "allowed", "is_allowed"),
    [
        ("https://up.example.com", "https://*.example.com", True),
        ("https://a.up.example.com.", "https://*.EXAMPLE.com", True),
        ("https://up.example.com:443", "https://*.example.com", True),
        ("https://up.example.com:8443", "https://*.example.com:8443", True),
        ("https://up.example.com:8443", "https://*.example.com", False),
        ("https://example.com", "https://*.example.com", False),
        ("https://notexample.com", "https://*.example.com", False),
        ("http://up.example.com", "https://*.example.com", False),
        ("https://api.example.com", "https://api.example.com:443/", True),
    ],
)
def test_origins_are_compared_as_origins(url: str, allowed: str, is_allowed: bool) -> None:
    servers = Servers(None, origins=[allowed])
    document = "https://docs.example.org/openapi.json"
    if is_allowed:
        assert servers.of(None, [{"url": url}], document) == url
    else:
        with pytest.raises(UnusableOperation):
            servers.of(None, [{"url": url}], document)


def test_an_operation_goes_no_further_than_its_document() -> None:
    own, home = [{"url": "http://2130706433/"}], [{"url": "https://api.example.com"}]
    with pytest.raises(UnusableOperation, match=r"http://127\.0\.0\.1"):
        Servers(None).of(own, home, FILE)
    assert Servers(None, origins=["http://127.0.0.1"]).of(own, home, FILE) == "http://2130706433"


def test_hosts_have_one_spelling() -> None:
    assert canonical_host("https://B\u00fccher.example./") == "xn--bcher-kva.example"
    assert (
        canonical_host("http://[::FFFF:127.0.0.1]/")
        == canonical_host("http://0x7f000001/")
        == "127.0.0.1"
    )
    assert canonical_origin("HTTPS://[2606:4700::1111]:443/x") == "https://[2606:4700::1111]"
