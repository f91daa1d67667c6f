"""What the gateway of test_conventions.py serves itself."""

from roundgate import Context, ToolError, prompt, resource, tool


@tool
async def greet(name: str) -> str:
    """Greets."""
    return f"Hello {name}"


@tool
async def hello() -> str:
    """Greets everyone."""
    return "Hello"


@tool
async def refuse() -> str:
    """Fails."""
    raise ToolError("no")


@tool(task="required")
async def think() -> str:
    """Needs the extension for tasks."""
    return "thought"


@prompt
async def ask(topic: str) -> str:
    """Asks about a topic."""
    return f"Tell me about {topic}"


@prompt
async def broken() -> str:
    """Fails."""
    raise RuntimeError("broken")


@resource("note://one")
async def note(ctx: Context) -> str:
    """A note."""
    return "text"
