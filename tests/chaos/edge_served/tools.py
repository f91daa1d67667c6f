"""What the server under attack serves, beside the tools of `tests/roundgate/http/served.py`."""

from roundgate import resource


@resource("note://by/{author}/{number}")
async def note(author: str, number: str) -> str:
    """A note."""
    return f"{author} {number}"


@resource("note://{+path}{?lang}")
async def any_note(path: str, lang: str = "en") -> str:
    """A note at a path."""
    return f"{path} {lang}"
