"""Resources that the conformance suite reads: text, bytes and a template."""

from roundgate import resource


@resource("test://static-text", mime_type="text/plain")
async def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@resource("test://static-binary", mime_type="application/octet-stream")
async def static_binary() -> bytes:
    """Every byte there is, once."""
    return bytes(range(256))


@resource("test://template/{id}/data", mime_type="application/json")
async def template_data(id: str) -> dict[str, str | bool]:  # noqa: A002  (the template's variable)
    """The data of one item."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
