"""Fixtures of the `input-required-result-*` scenarios: tools and a prompt that
ask before they answer."""

from pydantic import BaseModel

from roundgate import Context, Form, Roots, Sample, prompt, tool


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


class Consent(BaseModel):
    ok: bool


class Subject(BaseModel):
    context: str


@tool(unasked_answers=True)  # ignore-extra-params answers without a state, and expects the greeting
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Asks for a name and greets it."""
    answer = await ctx.elicit("user_name", "What is your name?", Name)
    return f"Hello, {answer.name}!"


@tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Asks the client's model."""
    return (
        await ctx.sample("capital_question", "What is the capital of France?", max_tokens=100)
    ).text


@tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Asks for the client's roots."""
    return ", ".join(root.uri for root in await ctx.roots("client_roots"))


@tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Says whether its state came back."""
    ctx.state["asked"] = True
    await ctx.elicit("confirm", "Go on?", Consent)
    return "state-ok" if ctx.state.get("asked") else "state-lost"


@tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks three things of three kinds in one round."""
    answers = await ctx.ask(
        {
            "user_name": Form("What is your name?", Name),
            "greeting": Sample("Write a greeting.", max_tokens=50),
            "client_roots": Roots(),
        }
    )
    return f"{answers['greeting'].get().text} {answers['user_name'].get().name}"


@tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Asks in one round, and something else in the next."""
    who = await ctx.elicit("user_name", "What is your name?", Name)
    likes = await ctx.elicit("user_color", f"Which color does {who.name} like?", Color)
    return f"{who.name} likes {likes.color}"


@tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Has a state worth changing."""
    await ctx.elicit("confirm", "Go on?", Consent)
    return "untouched"


@tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks whatever the client can be asked."""
    form = Form("What is your name?", Name)
    if ctx.supports(form):
        return str((await ctx.ask({"user_name": form}))["user_name"].get().name)
    return (await ctx.sample("guess", "Guess a name.", max_tokens=10)).text


@prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """Asks what it is about."""
    return (
        f"Consider this: {(await ctx.elicit('user_context', 'What is it about?', Subject)).context}"
    )
