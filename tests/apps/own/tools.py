"""A tool with a page, and one that only the page calls."""

from roundgate import App, tool


@tool(ui="page.html", read_only=True)
def stock() -> dict[str, int]:
    """Return what is in stock."""
    return {"apples": 3}


@tool(ui=App(visibility=["app"]), read_only=True)
def count_again() -> dict[str, int]:
    """Count the stock again."""
    return {"apples": 4}
