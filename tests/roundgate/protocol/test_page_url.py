"""Pages that a user is sent to: the host that is shown is the host that opens, for the gateway that
asks and for the client that is asked."""

from __future__ import annotations

import pytest

from roundgate import Url
from roundgate.client import Question
from roundgate.client.transport import Url as Endpoint
from roundgate.errors import BadAnswer, ClientError
from roundgate.protocol import page_host

PAGES = {
    "https://bank.example/pay?x=1": "bank.example",
    "https://Bank.Example:8443/": "bank.example",
    "https://xn--bnk-7cd.example/": "xn--bnk-7cd.example",
    "https://bank.example./": "bank.example.",
    "https://192.0.2.1/": "192.0.2.1",
    "https://[2001:db8::1]/": "2001:db8::1",
    "https://my_host/": "my_host",
    "https://bank.example/%5C@evil.example": "bank.example",
    "http://localhost:8000/": "localhost",
    "http://127.0.0.1:8000/done": "127.0.0.1",
    "http://[::1]:8000/": "::1",
}
HOSTILE = {
    "a backslash behind the host": "https://evil.example\\@bank.example/",
    "a backslash in front of the host": "https:\\\\evil.example/",
    "a backslash within the host": "https://evil.example\\.bank.example/",
    "a user name": "https://bank.example@evil.example/",
    "an empty user name": "https://@evil.example/",
    "a tab": "https://bank.ex\tample/",
    "a line end": "https://bank.example\n.evil.example/",
    "a blank": "https://bank.example .evil.example/",
    "a zero byte": "https://bank.example\0.evil.example/",
    "a Cyrillic letter": "https://b\u0430nk.example/",
    "a full-width dot": "https://bank\uff0eexample/",
    "a right-to-left mark": "https://bank.example/\u202egpj",
    "an escaped letter in the host": "https://%65vil.example/",
    "an escaped slash in the host": "https://evil.example%2f.bank.example/",
    "one number": "https://2130706433/",
    "a short address": "https://127.1/",
    "a hexadecimal address": "https://0x7f.0.0.1/",
    "an octal address": "https://0177.0.0.1/",
    "no authority": "https:evil.example/",
    "one slash": "https:/evil.example/",
    "three slashes": "https:///evil.example/",
    "a zone": "https://[fe80::1%25evil]/",
    "an empty label": "https://bank..example/",
    "http elsewhere": "http://bank.example/",
    "http at a name like this machine's": "http://localhost.evil.example/",
    "http at a number": "http://2130706433/",
    "another scheme": "javascript:alert(1)",
    "a file": "file:///etc/passwd",
    "a port that is none": "https://bank.example:x/",
    "nothing": "",
}


def question(url: object) -> Question:
    params = {"mode": "url", "message": "Pay", "url": url}
    return Question.read("pay", {"method": "elicitation/create", "params": params})


@pytest.mark.parametrize("url", PAGES)
def test_a_page_is_shown_as_the_host_that_opens(url: str) -> None:
    assert page_host(url) == PAGES[url]
    assert question(url).host == PAGES[url]
    assert question(url).url == url
    assert Url("Pay", url).url == url


@pytest.mark.parametrize("name", HOSTILE)
def test_a_url_that_a_browser_may_read_otherwise_is_refused_by_both_sides(name: str) -> None:
    url = HOSTILE[name]
    with pytest.raises(ValueError, match=r"url|URL|page|host|user name|characters"):
        Url("Pay", url)
    with pytest.raises(BadAnswer, match="has an unusable URL") as caught:
        question(url)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", [None, 7, ["https://bank.example/"], {"href": "x"}])
def test_what_is_no_text_is_no_page(url: object) -> None:
    with pytest.raises(BadAnswer, match="must be text"):
        question(url)


@pytest.mark.parametrize(
    "host", ["evil.example\\.bank.example", "%65vil.example", "2130706433", "0x7f.1", "127.1"]
)
def test_no_endpoint_has_such_a_host_either(host: str) -> None:
    """So the page of a login, which a server names, opens at the host that it is checked for."""
    with pytest.raises(ClientError):
        Endpoint.parse(f"https://{host}/authorize")
