"""docs/http.md: the service on a laptop is httpbin, and its gateway.yaml
does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from roundgate import config
from tests.support.documents import ROOT
from tests.support.openapi import gateway_of
from tests.support.rounds import accept, ask, retry, tool

PAGE = (ROOT / "docs" / "http.md").read_text()


async def test_the_gateway_of_the_page_does_what_the_page_says(
    tmp_path: Path, httpbin_url: str
) -> None:
    part = PAGE.partition("## A real service on a laptop")[2]
    (text,) = re.findall(r"```yaml\n(.*?)```", part.partition("\n## ")[0], re.DOTALL)
    path = tmp_path / "gateway.yaml"
    path.write_text(text.replace("http://127.0.0.1:8081", httpbin_url))
    async with gateway_of(config.load(path, {})) as gate:
        method, params = tool("bin__order", customer_id=7, article="tea")
        asked = await ask(gate, method, params)
        message = asked["inputRequests"]["approve"]["params"]["message"]
        assert 'Order "tea" for customer 7?' in message
        assert "- count: 1" in message
        confirmed = retry(params, asked, approve=accept(approve=True))
        ordered = (await gate.result(method, confirmed))["structuredContent"]
        assert ordered == {"customer": {"id": 7}, "lines": [{"article": "tea", "count": 1}]}
        photo = {"text": "a photo", "file_name": "cat.png", "media_type": "image/png"}
        found = await gate.call("bin__upload", {"photo": photo, "tags": ["a", "b"]})
        assert found["structuredContent"]["files"] == {"photo": "a photo"}
        assert found["structuredContent"]["form"] == {"album": "cats", "tags": "a,b"}
        assert await gate.text("bin__unsteady", {"codes": [200]}) == "200 OK"
        said = await gate.text("bin__unsteady", {"codes": [200, 503]})
        assert said.startswith(("200 OK", "The service answered 503"))  # by chance, 1 of 1,024
