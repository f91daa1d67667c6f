"""Requests as httpx would write them: targets, redirects, headers."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.http.service import is_plain_target
from roundgate.net.http import read_url, redirect
from roundgate.net.request import WireRequest

ORIGIN = ("https", "service.example", 443)


@given(st.text("abzAZ09._~!$&()*+,;=:@/?-%2Fe' ", max_size=12).map("/".__add__))
def test_httpx_writes_a_plain_target_as_it_is(target: str) -> None:
    if is_plain_target(target):
        assert read_url(f"https://service.example/v1{target}") == (ORIGIN, f"/v1{target}")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location", ["/b?c=1", "d", "https://other.example:8443/e", "//f.example/"]
)
async def test_a_redirect_is_the_one_of_httpx(method: str, status: int, location: str) -> None:
    request = WireRequest(method, ORIGIN, "/a/x", [("X-Own", "1")], b"body")
    redirect(request, status, location)

    def answer(sent: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"location": location})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        expected = (
            await client.request(method, "https://service.example/a/x", content=b"body")
        ).next_request
    assert expected is not None
    assert (request.method, request.url) == (expected.method, str(expected.url))
    assert request.body == await expected.aread()


def test_a_header_replaces_others_of_its_name() -> None:
    request = WireRequest(
        "GET", ("http", "::1", 8080), "/", [("X-A", "1"), ("x-b", "2"), ("x-a", "3")]
    )
    request.set_header("X-a", "4")
    assert (request.header("x-a"), request.header("x-c")) == ("4", None)
    assert (request.headers, request.url) == ([("x-b", "2"), ("X-a", "4")], "http://[::1]:8080/")
