"""Tools for a desk: exact arithmetic, a diff, primes on demand, a style guide."""

from __future__ import annotations

import ast
import asyncio
import difflib
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, Field

from roundgate import Context, PromptMessage, ResourceNotFound, ToolError, prompt, resource, tool

OPERATORS: dict[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class Number(BaseModel):
    """A result, exact and as a decimal."""

    exact: str = Field(description="A whole number or a fraction, such as 1/3")
    decimal: float


@tool(title="Calculate", read_only=True, idempotent=True)
def calculate(expression: Annotated[str, Field(max_length=500)]) -> Number:
    """Evaluate an arithmetic expression exactly, with fractions instead of rounding.

    Args:
        expression: Numbers, parentheses and + - * / // % ** (whole exponents up to 1000), such as
            "(1 + 1/3) * 3".
    """
    try:
        value = _evaluate(ast.parse(expression, mode="eval").body)
        return Number(exact=str(value), decimal=float(value))
    except SyntaxError:
        raise ToolError(
            "That is not an arithmetic expression; write it as in Python, with * for multiplication"
        ) from None
    except (ZeroDivisionError, OverflowError, RecursionError) as error:
        raise ToolError(f"The expression has no result: {error}") from None


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.BinOp(left, ast.Pow(), right):
            base, exponent = _evaluate(left), _evaluate(right)
            if (
                exponent.denominator != 1
                or abs(exponent) > 1000
                or base.numerator.bit_length() > 1000
            ):
                raise ToolError(
                    "Exponents must be whole and at most 1000, and bases at most 1000 bits long"
                )
            return base ** int(exponent)
        case ast.BinOp(left, symbol, right) if type(symbol) in OPERATORS:
            return Fraction(OPERATORS[type(symbol)](_evaluate(left), _evaluate(right)))
        case ast.UnaryOp(symbol, operand) if type(symbol) in OPERATORS:
            return OPERATORS[type(symbol)](_evaluate(operand))
    raise ToolError(
        f"{ast.unparse(node)[:80]!r} is not arithmetic; use only numbers and + - * / // % **"
    )


@tool(read_only=True, idempotent=True)
def diff(before: str, after: str) -> str:
    """Compare two texts line by line; returns a unified diff, empty if they are the same."""
    return "\n".join(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), "before", "after", lineterm=""
        )
    )


@tool(read_only=True, idempotent=True)
async def find_primes(ctx: Context, limit: Annotated[int, Field(ge=2, le=2_000_000)]) -> list[int]:
    """Find the ten largest primes below a limit; reports progress on the way.

    Args:
        limit: Primes are below this number.
    """
    sieve = bytearray([1]) * limit
    sieve[:2] = b"\0\0"
    end = int(limit**0.5) + 1
    for number in range(2, end):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
        if number % max(1, end // 5) == 0:
            await ctx.progress(number, total=end, message=f"sieved by {number}")
            await asyncio.sleep(0)
    await ctx.log("info", {"primes": sum(sieve)})
    return [number for number in range(limit - 1, 1, -1) if sieve[number]][:10]


STYLES = {
    "plain": "Short sentences. Say what changed, then why it matters.",
    "formal": "Full sentences, no contractions, the effect on the reader first.",
    "changelog": "One bullet a change, in the imperative, grouped as Added, Changed, Fixed.",
}


@resource("desk://styles", mime_type="application/json", title="Writing styles")
def styles() -> dict[str, str]:
    """The styles in which changes can be described."""
    return STYLES


@resource("desk://styles/{name}", title="A writing style", complete={"name": list(STYLES)})
def style(name: str) -> str:
    """One style, as an instruction for a writer."""
    if name not in STYLES:
        raise ResourceNotFound(f"desk://styles/{name}")
    return STYLES[name]


@prompt(title="Describe a change", complete={"style": list(STYLES)})
def describe_change(before: str, after: str, style: str = "plain") -> list[PromptMessage]:
    """Ask for a description of what changed between two texts.

    Args:
        before: The text as it was.
        after: The text as it is now.
        style: How to write; plain, formal or changelog.
    """
    return [
        PromptMessage("user", f"Describe what changed. {STYLES.get(style, style)}"),
        PromptMessage("user", diff(before, after) or "Nothing changed."),
    ]
