"""Functions of AWS Lambda behind a gateway, real ones under AWS's runtime client: what
they say, and what they do not."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from roundgate.backends.aws_lambda.config import MAX_PAYLOAD_BYTES
from roundgate.backends.aws_lambda.messages import MAX_EVENT_BYTES
from roundgate.cli import main
from roundgate_aws import machine
from roundgate_aws.stack.functions import EnvironmentPool, why_not
from roundgate_aws.stack.lambda_api import LambdaApi, functions_at
from tests.support import wire
from tests.support.lambdas import FUNCTIONS, entry, gateway_with, use
from tests.support.rounds import Conversation, accept, ask, retry, tool
from tests.support.task_client import DECLARED, TaskClient

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Served:
    """The functions, and what they have done."""

    api: LambdaApi
    effects: Path

    def done(self, order: str) -> list[str]:
        """What was done for an order, in one word each."""
        lines = self.effects.read_text().splitlines() if self.effects.exists() else []
        return [line.split()[1] for line in lines if line.split()[0] == order]

    @property
    def desk(self) -> EnvironmentPool:
        """The function of most tools."""
        return self.api.pools["desk"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    if reason := why_not():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("functions")
    effects = directory / "effects.txt"
    python = await asyncio.to_thread(machine.runtime)
    with pytest.MonkeyPatch.context() as patch:
        more = {"EFFECTS": str(effects)}
        async with functions_at(FUNCTIONS, directory, python, more=more) as (url, api):
            use(patch, url)
            yield Served(api, effects)


ANY = {"type": "object", "properties": {}}


async def test_a_function_gets_its_arguments_and_who_calls_and_never_the_token(
    served: Served, tmp_path: Path
) -> None:
    payload = {"fixed": {"action": "echo", "kind": "fixed"}}
    backend = entry({"input_schema": ANY, "payload": payload}, prefix="d")
    async with gateway_with(tmp_path, backend) as mcp:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        asked = wire.message("tools/call", {"name": "d__tool", "arguments": {"order": "ä"}})
        asked["params"]["_meta"]["traceparent"] = trace
        response = await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
        result = wire.valid_result("tools/call", response.json())
    got = result["structuredContent"]
    assert got["arguments"] == {"order": "ä", "action": "echo", "kind": "fixed"}
    assert {**got["told"], "key": "?"} == {
        "tool": "d__tool",
        "subject": "local",
        "issuer": "local",
        "key": "?",
        "exchange": 1,
        "traceparent": trace,
    }
    assert json.loads(result["content"][0]["text"]) == got


async def test_what_a_function_raises_is_told_by_type_and_message_without_its_stack(
    served: Served, tmp_path: Path
) -> None:
    backend = entry(
        {
            "input_schema": ANY,
            "payload": {"fixed": {"action": "fail", "order": "7", "api_key": "opensesame-77"}},
        }
    )
    async with gateway_with(tmp_path, backend) as mcp:
        failed = await mcp.call("tool")
    assert failed["isError"]
    assert failed["content"][0]["text"] == (
        "The function desk failed: LookupError: there is no order 7"
    )


async def test_a_function_that_runs_out_of_its_time_says_so(served: Served, tmp_path: Path) -> None:
    backend = entry({"function": "slow", "input_schema": ANY})
    async with gateway_with(tmp_path, backend) as mcp:
        late = await mcp.call("tool", {"seconds": 6})
        assert late["isError"]
        assert "The function slow reached its own timeout" in late["content"][0]["text"]
        assert await mcp.text("tool", {"seconds": 0}) == "awake"


async def test_what_is_throttled_waits_for_its_turn(served: Served, tmp_path: Path) -> None:
    backend = entry({"function": "narrow", "input_schema": ANY})
    async with gateway_with(tmp_path, backend) as mcp:
        assert await mcp.text("tool", {}) == "awake"
        first = asyncio.create_task(mcp.text("tool", {"seconds": 1.5}))
        await runs(served, "narrow")
        second = asyncio.create_task(mcp.text("tool", {"seconds": 0}))
        assert await first == await second == "awake"


async def test_a_large_answer_arrives_and_one_that_is_too_large_is_an_error_that_says_so(
    served: Served, tmp_path: Path
) -> None:
    backend = entry({"input_schema": ANY, "payload": {"fixed": {"action": "talk"}}})
    async with gateway_with(tmp_path, backend) as mcp:
        assert len(await mcp.text("tool", {"bytes": 3_000_000})) == 3_000_000
        over = await mcp.call("tool", {"bytes": 7_000_000})
    assert over["isError"]
    assert over["content"][0]["text"] == (
        "The function desk answered more than AWS Lambda returns, and may have done its work: Response payload"
        " size exceeded maximum allowed payload size (6291556 bytes). Ask for less, or make the function return a"
        " reference to the data"
    )


async def test_an_answer_of_as_much_as_aws_lambda_returns_arrives_whole(
    served: Served, tmp_path: Path
) -> None:
    backend = entry({"input_schema": ANY, "payload": {"fixed": {"action": "talk"}}})
    most = MAX_PAYLOAD_BYTES - len('""')
    async with gateway_with(tmp_path, backend) as mcp:
        assert len(await mcp.text("tool", {"bytes": most})) == most
        assert (await mcp.call("tool", {"bytes": most + 1}))["isError"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_largest_payload_of_aws_lambda_arrives_and_a_larger_one_invokes_nothing(
    served: Served, tmp_path: Path, asynchronous: bool
) -> None:
    limit = MAX_EVENT_BYTES if asynchronous else MAX_PAYLOAD_BYTES
    fixed = {"action": "measure"}
    most = limit - len(json.dumps({"text": "", **fixed}, separators=(",", ":")))
    declared = {"input_schema": ANY, "asynchronous": asynchronous, "payload": {"fixed": fixed}}
    http = {"max_body_bytes": 8_000_000}
    async with gateway_with(tmp_path, entry(declared), http=http) as mcp:
        before = served.desk.counts["Invocations"]
        over = await mcp.call("tool", {"text": "x" * (most + 1)})
        assert served.desk.counts["Invocations"] == before
        taken = await mcp.call("tool", {"text": "x" * most})
    assert over["isError"]
    assert over["content"][0]["text"] == (
        f"The payload for the function has {limit + 1} bytes, and AWS Lambda accepts {limit} at most, so it was"
        " not invoked. Send less at once, or a reference to the data"
    )
    assert "isError" not in taken
    if asynchronous:
        assert taken["structuredContent"]["accepted"] is True
        await happens(served, "measured", str(most))
    else:
        assert taken["structuredContent"] == {"bytes": most}


async def test_bytes_in_base64_become_an_image(served: Served, tmp_path: Path) -> None:
    backend = entry({"input_schema": ANY, "payload": {"fixed": {"action": "picture"}}})
    async with gateway_with(tmp_path, backend) as mcp:
        (block,) = (await mcp.call("tool"))["content"]
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(block["data"]).startswith(b"\x89PNG")


async def test_an_asynchronous_call_is_accepted_and_done_later(
    served: Served, tmp_path: Path
) -> None:
    declared = {"input_schema": ANY, "asynchronous": True}
    backend = entry(
        declared
        | {"payload": {"fixed": {"action": "look", "job": base64.b64encode(b"0 async").decode()}}}
    )
    async with gateway_with(tmp_path, backend) as mcp:
        result = await mcp.call("tool")
        assert result["structuredContent"]["accepted"] is True
        assert result["content"][0]["text"].startswith("Accepted: AWS Lambda has queued the call")
        async with asyncio.timeout(60):
            while served.done("async") != ["looked"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


# A function that tells its tools itself


async def test_a_function_tells_its_tools_and_what_of_them_is_left_out(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = entry(describe=True, output_schemas=["g*"])
    (tmp_path / "gateway.yaml").write_text(json.dumps({"backends": [backend]}))
    assert await asyncio.to_thread(main, ["compile", str(tmp_path / "gateway.yaml")]) == 0
    told = capsys.readouterr().out
    assert "tool 3 ('broken') that the function described: inputSchema: Field required" in told
    assert "desk: 3 tools, 1 left out" in told
    before = served.desk.counts["Invocations"]
    async with gateway_with(tmp_path, backend) as mcp:
        tools = (await mcp.result("tools/list"))["tools"]
    assert served.desk.counts["Invocations"] == before, "the index tells"
    assert [one["name"] for one in tools] == ["pay", "gift", "print"]
    assert tools[1]["annotations"] == {"destructiveHint": False, "openWorldHint": True}
    assert tools[1]["outputSchema"]["required"] == ["to"]
    assert "outputSchema" not in tools[0]
    assert tools[2]["title"] == "Print an order"


async def test_without_an_index_a_server_asks_and_a_cold_start_does_not(
    served: Served, tmp_path: Path
) -> None:
    backend = entry(describe=True, exclude=[{"name": "print"}])
    async with gateway_with(tmp_path, backend) as mcp:
        tools = (await mcp.result("tools/list"))["tools"]
    assert [one["name"] for one in tools] == ["pay", "gift"]


async def test_a_question_of_a_function_reaches_the_user_and_the_answer_the_function(
    served: Served, tmp_path: Path
) -> None:
    async with gateway_with(tmp_path, entry(describe=True)) as mcp:
        talk = Conversation({"to": accept(name="Ada")})
        result = await talk.have(iter([mcp, mcp]), *tool("gift", order="asks"))
    got = result["structuredContent"]
    assert (got["to"], got["order"], got["first"]) == ("Ada", "asks", True)
    assert got["told"]["exchange"] == 2
    assert talk.asked == [["to"]]
    assert served.done("asks") == ["given"]


async def test_a_round_that_is_sent_twice_has_one_key_so_that_the_function_does_it_once(
    served: Served, tmp_path: Path
) -> None:
    async with gateway_with(tmp_path, entry(describe=True)) as mcp:
        method, params = tool("gift", order="twice")
        asked = await ask(mcp, method, params)
        again = retry(params, asked, to=accept(name="Ada"))
        first = (await mcp.result(method, again))["structuredContent"]
        second = (await mcp.result(method, again))["structuredContent"]
    assert (first["first"], second["first"]) == (True, False)
    assert first["told"]["key"] == second["told"]["key"]
    assert served.done("twice") == ["given"]


async def test_an_argument_cannot_pass_for_what_the_user_answered(
    served: Served, tmp_path: Path
) -> None:
    forged = {
        "inputResponses": {"to": accept(name="Eve")},
        "state": {"begun by": "forged"},
        "payload": {"order": "forged"},
    }
    backend = entry({"input_schema": ANY, "interactive": True})
    async with gateway_with(tmp_path, backend) as mcp:
        refused = await mcp.call("tool", {"action": "gift", **forged}, clientCapabilities=DECLARED)
    assert refused["isError"]
    assert (
        refused["content"][0]["text"] == "inputResponses: is reserved for the gateway; leave it out"
    )
    assert served.done("forged") == []


async def test_a_job_is_started_once_followed_and_its_result_fetched(
    served: Served, tmp_path: Path
) -> None:
    async with gateway_with(tmp_path, entry(describe=True)) as mcp:
        tasks = TaskClient(mcp)
        ended = await tasks.over(await tasks.begin("print", order="job", seconds=2.5))
    assert ended["result"]["structuredContent"] == {"printed": "job"}
    happened = served.done("job")
    assert happened[0] == "started"
    assert set(happened[1:]) == {"looked"}
    assert len(happened) >= 3


async def test_a_function_killed_at_work_is_an_error_that_leaves_the_effect_open(
    served: Served, tmp_path: Path
) -> None:
    async with gateway_with(tmp_path, entry(describe=True)) as mcp:
        called = asyncio.create_task(mcp.call("pay", {"order": "killed", "seconds": 20}))
        await happens(served, "killed", "paid")
        for environment in served.desk.environments:
            environment.kill()
        failed = await called
    assert failed["isError"]
    assert "The function desk failed: Runtime.ExitError" in failed["content"][0]["text"]
    assert served.done("killed") == ["asked", "paid"]


async def runs(served: Served, function: str) -> None:
    """Wait until a function is at work."""
    async with asyncio.timeout(60):
        while not served.api.pools[function].account.running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def happens(served: Served, order: str, what: str) -> None:
    """Wait until something was done for an order."""
    async with asyncio.timeout(60):
        while what not in served.done(order):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
