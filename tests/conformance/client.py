"""The client that the official suite tests: `roundgate.client`, told by each scenario what to do.

The suite starts it once a scenario, with the URL of its server as the last argument, the scenario's
name in `MCP_CONFORMANCE_SCENARIO`, the revision in `MCP_CONFORMANCE_PROTOCOL_VERSION`, and what
belongs to the scenario in `MCP_CONFORMANCE_CONTEXT`.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from roundgate.client import ACCEPT, Client, Kind, Question
from roundgate.client.auth import (
    Auth,
    BrowserLogin,
    ClientCredentials,
    EnterpriseIdentity,
    WorkloadIdentity,
)
from roundgate.client.transport import HttpRequest, HttpxTransport, Limits, Url
from roundgate.errors import ClientError

METADATA_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""Where the suite believes the metadata of this client to be."""


def context() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return found


async def browser(url: str) -> None:
    """What a user who consents to everything does in a browser: follow the redirect to the callback."""
    transport = HttpxTransport(Limits())
    try:
        response = await transport.send(HttpRequest("GET", Url.parse(url), []))
        await response.close()
        response = await transport.send(
            HttpRequest("GET", Url.parse(response.headers["location"]), [])
        )
        await response.close()
    finally:
        await transport.close()


def consent(question: Question) -> Any:
    if question.kind is Kind.FORM:
        return {
            name: True for name, one in question.fields.items() if one.get("type") == "boolean"
        } or ACCEPT
    return None


async def list_and_call(client: Client) -> None:
    """List tools and call the first, with two numbers."""
    tools = await client.tools()
    await client.call(tools[0].name, a=2, b=3)


async def connect(client: Client) -> None:
    await client.tools()


async def authorized_call(client: Client) -> None:
    await client.tools()
    await client.call("test-tool")


async def rounds(client: Client) -> None:
    """A call in two rounds with another in between, one without a state, and one that only looks like a round."""

    async def meanwhile(question: Question) -> Any:
        await client.call("test_mrtr_unrelated")
        return consent(question)

    await client.call("test_mrtr_echo_state", answers=meanwhile)
    await client.call("test_mrtr_no_state", answers=consent)
    await client.call("test_mrtr_no_result_type")


async def everything_with_headers(client: Client) -> None:
    for tool in await client.tools():
        await client.call(tool.name)
    for resource in await client.resources():
        await client.read(resource.uri)
    for prompt in await client.prompts():
        await client.prompt(prompt.name)


async def calls_of_the_context(client: Client) -> None:
    await client.tools()
    for one in context()["toolCalls"]:
        await client.call(one["name"], one["arguments"])


async def every_listed_tool(client: Client) -> None:
    for tool in await client.tools():
        await client.call(tool.name, dict.fromkeys(tool.input_schema.get("properties", {}), "x"))


async def echo_schema(client: Client) -> None:
    tool = await client.tool("json_schema_2020_12_tool")
    await client.call("json_schema_echo", schema=tool.input_schema)


async def only_tool(client: Client) -> None:
    for tool in await client.tools():
        await client.call(tool.name, answers=lambda _: ACCEPT)


async def list_skills(client: Client) -> None:
    await client.skills()


async def load_skill(client: Client) -> None:
    """Load a skill and then read its other files."""
    (skill,) = await client.skills()
    await client.read_skill(skill)
    for uri in skill.files or ():
        await client.read_skill(skill, uri)


STEPS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "initialize": connect,
    "tools_call": list_and_call,
    "request-metadata": connect,
    "elicitation-sep1034-client-defaults": only_tool,
    "sse-retry": only_tool,
    "sep-2322-client-request-state": rounds,
    "http-standard-headers": everything_with_headers,
    "http-custom-headers": calls_of_the_context,
    "http-invalid-tool-headers": every_listed_tool,
    "json-schema-ref-no-deref": connect,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2640-client-no-prefetch": list_skills,
    **{f"sep-2640-client-verify-{part}": load_skill for part in ("digest", "size", "frontmatter")},
    "auth/client-credentials-jwt": connect,
    "auth/client-credentials-basic": connect,
    "auth/pre-registration": connect,
    "auth/wif-jwt-bearer": connect,
}


def auth(scenario: str) -> Auth | None:
    if not scenario.startswith("auth/"):
        return None
    given = context()
    match scenario:
        case "auth/client-credentials-jwt":
            key, algorithm = given["private_key_pem"], given.get("signing_algorithm", "ES256")
            return ClientCredentials(
                given["client_id"], private_key=key, algorithm=algorithm, issuer=None
            )
        case "auth/client-credentials-basic":
            return ClientCredentials(given["client_id"], given["client_secret"], issuer=None)
        case "auth/pre-registration":
            return BrowserLogin(
                client_id=given["client_id"], client_secret=given["client_secret"], open_url=browser
            )
        case "auth/wif-jwt-bearer":
            return WorkloadIdentity(given["valid_jwt"], client_id=given["client_id"], issuer=None)
        case "auth/enterprise-managed-authorization":
            names = ("idp_token_endpoint", "idp_client_id", "client_id", "client_secret")
            return EnterpriseIdentity(
                id_token=given["idp_id_token"],
                issuer=None,
                **{name: given[name] for name in names},
            )
    return BrowserLogin(client_metadata_url=METADATA_DOCUMENT, open_url=browser, login_s=10)


async def main() -> int:
    scenario, url = os.environ["MCP_CONFORMANCE_SCENARIO"], sys.argv[-1]
    steps = STEPS.get(scenario, authorized_call if scenario.startswith("auth/") else None)
    if steps is None:
        print(f"no steps for the scenario {scenario!r}", file=sys.stderr)
        return 2
    try:
        async with Client(url, auth=auth(scenario)) as client:
            await steps(client)
    except ClientError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
