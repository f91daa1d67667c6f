"""Prompts that the conformance suite gets: plain, with arguments and their completion, and
with a resource inside."""

from roundgate import EmbeddedResource, PromptMessage, TextResourceContents, prompt


def values_for_arg2(value: str) -> list[str]:
    """Completes `value` to the words that start with it."""
    return [word for word in ("paragraph", "parameter", "part", "test") if word.startswith(value)]


@prompt
async def test_simple_prompt() -> str:
    """Takes no arguments."""
    return "This is a simple prompt for testing."


@prompt(complete={"arg1": ["paris", "park", "party", "test"], "arg2": values_for_arg2})
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Repeats its two arguments.

    Args:
        arg1: First test argument.
        arg2: Second test argument.
    """
    return f"Prompt with arguments: arg1={arg1!r}, arg2={arg2!r}"


@prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[PromptMessage]:
    """Embeds a resource in its first message.

    Args:
        resourceUri: The URI of the resource to embed.
    """
    embedded = TextResourceContents(
        uri=resourceUri,
        text="Embedded resource content for testing.",
        mime_type="text/plain",
    )
    return [
        PromptMessage("user", EmbeddedResource(resource=embedded)),
        PromptMessage("user", "Please process the embedded resource above."),
    ]
