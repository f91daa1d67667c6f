"""What bench/costs.md says that calls and tasks cost: it is computed from units, and the
units are counted here."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from infra import costs
from roundgate import observability as logs
from roundgate.clock import Clock
from roundgate_aws import http as lambda_http
from roundgate_aws import worker as lambda_worker
from roundgate_aws.template import StackTemplate
from tests.roundgate_aws.functions.at_aws import REQUEUE_S, Witness, begin, result, work
from tests.roundgate_aws.functions.at_aws import dynamodb as dynamodb
from tests.roundgate_aws.functions.at_aws import endpoint as endpoint
from tests.roundgate_aws.functions.at_aws import environ as environ
from tests.roundgate_aws.functions.at_aws import functions as functions
from tests.roundgate_aws.functions.at_aws import witness as witness
from tests.roundgate_aws.functions.conftest import Functions, LambdaContext, recorded
from tests.support import moto_server
from tests.support.cloudwatch import alarms
from tests.support.rounds import accept, retry

ASSUMED, MEASURED = costs.Assumed(), costs.Measured.read()


def test_the_tables_in_the_documentation_are_the_ones_that_are_computed() -> None:
    document = costs.DOCUMENT.read_text("utf-8")
    assert costs.documented(document) == document, "run `python -m infra.costs --write`"


def test_the_metrics_that_are_paid_for_are_those_of_tasks_that_end_well(
    functions: Functions, log: io.StringIO
) -> None:
    task_id, other = begin(functions, "bare"), begin(functions, "bare")
    work(functions, task_id)
    answers = {"taskId": task_id, "inputResponses": {"one": accept(text="x")}}
    result(functions, "tasks/update", answers)
    work(functions, task_id)
    result(functions, "tasks/cancel", {"taskId": other})
    functions.worker(recorded("schedule"), LambdaContext())
    lines = [json.loads(line) for line in log.getvalue().splitlines() if '"_aws"' in line]
    told = [
        one["Name"]
        for line in lines
        for directive in line["_aws"]["CloudWatchMetrics"]
        for one in directive["Metrics"]
    ]
    assert sorted({*told}) == sorted({*costs.SWEEP_METRICS, *costs.TASK_METRICS})
    assert (told.count("created"), told.count("claimed"), told.count("ended")) == (2, 2, 2)


# counting


@pytest.fixture
def log(functions: Functions) -> Iterator[io.StringIO]:
    """What the functions write, beside where they write it to."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logs.JsonFormatter())
    logging.getLogger().addHandler(handler)
    yield text
    logging.getLogger().removeHandler(handler)


def counted(witness: Witness) -> costs.Units:
    """What has been used, without the logs."""
    used = witness.used
    return costs.Units(
        requests=used.get("gateway", 0),
        turns=used.get("worker", 0),
        writes=used.get("writes", 0),
        reads=used.get("reads", 0),
        messages=3 * used.get("sqs:SendMessage", 0),
        secret_reads=used.get("secretsmanager:GetSecretValue", 0),
    )


def open_account(functions: Functions, witness: Witness) -> None:
    """Reserve the first block of the caller's account in both functions, which is written once for
    hundreds of tasks, and count from here."""
    task_id = begin(functions, "usual")
    work(functions, task_id)
    result(functions, "tasks/cancel", {"taskId": task_id})
    witness.used.clear()


def units(computed: costs.Units) -> costs.Units:
    """Computed units, without the logs."""
    return replace(computed, log_bytes=0)


def test_a_plain_call(functions: Functions, witness: Witness) -> None:
    result(functions, "tools/call", {"name": "plain", "arguments": {}})
    assert counted(witness) == units(costs.plain_call(MEASURED))


def test_a_call_in_rounds_uses_no_store(functions: Functions, witness: Witness) -> None:
    params = {"name": "ask", "arguments": {}}
    asked = result(functions, "tools/call", params)
    for key in ("one", "two"):
        asked = result(functions, "tools/call", retry(params, asked, **{key: accept(text=key)}))
    seldom = replace(
        ASSUMED, requests_per_key_read=3
    )  # the keys are read once, with the first of these three
    assert counted(witness) == units(costs.call_in_rounds(3, seldom, MEASURED))


@dataclass
class Meter:
    """What one thing after another writes."""

    functions: Functions
    witness: Witness
    monkeypatch: pytest.MonkeyPatch

    def later(self, seconds: int) -> None:
        """Let time pass for both functions."""
        now_ms = Clock.now_ms
        self.monkeypatch.setattr(Clock, "now_ms", lambda clock: now_ms(clock) + 1000 * seconds)

    def since(self) -> costs.Writes:
        """Since it was last asked."""
        together, due, owned = (
            self.witness.used.pop(name, 0) for name in ("writes", "due writes", "owned writes")
        )
        return costs.Writes(together - due - owned, due, owned)

    def created(self, tool: str) -> tuple[str, costs.Writes]:
        """A new task, and what it took to write it."""
        self.since()
        return begin(self.functions, tool), self.since()

    def turn(self, task_id: str) -> costs.Writes:
        work(self.functions, task_id)
        return self.since()

    def answered(self, task_id: str) -> costs.Writes:
        answers = {"one": accept(text="x")}
        result(self.functions, "tasks/update", {"taskId": task_id, "inputResponses": answers})
        return self.since()

    def swept(self) -> costs.Writes:
        self.functions.worker(recorded("schedule"), LambdaContext())
        return self.since()

    def poll(self, task_id: str) -> float:
        """Units that a look at a task reads; it writes nothing."""
        self.witness.used.pop("reads", 0)
        result(self.functions, "tasks/get", {"taskId": task_id})
        assert self.since() == costs.Writes(0, 0, 0)
        return float(self.witness.used.pop("reads"))

    def measured(self, log_bytes: Mapping[str, Mapping[str, int]]) -> costs.Measured:
        """Everything that is paid for by the unit."""
        bare, create = self.created("bare")
        asks, answer, ends = self.turn(bare), self.answered(bare), self.turn(bare)
        usual, _ = self.created("usual")
        two_steps = self.turn(usual) - asks
        polled = self.poll(usual)
        self.answered(usual)
        third = self.turn(usual) - ends
        assert third * 2 == two_steps, "a step costs the same before and after a question"
        many, _ = self.created("long")
        long_steps = self.turn(many) - ends
        late, _ = self.created("usual")
        self.later(REQUEUE_S)
        with_resend = self.swept()
        self.turn(late)
        queries = self.witness.used["dynamodb:Query"]
        sweep = self.swept()
        resend = with_resend - sweep
        # the emulator counts nothing for an index that is empty, AWS half a unit for each query
        sweep_reads = 0.5 * (self.witness.used["dynamodb:Query"] - queries)
        parts = (long_steps.table, long_steps.due, long_steps.owned)
        long_step = costs.Writes(*(round(part / costs.LONG_STEPS, 3) for part in parts))
        return costs.Measured(
            create,
            asks,
            ends,
            third,
            long_step,
            answer,
            resend,
            sweep,
            polled,
            sweep_reads,
            log_bytes,
        )


def test_what_the_costs_are_computed_from_is_what_is_counted(
    functions: Functions, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MEASURE=1 in the environment, what is counted is written down; then `python -m
    infra.costs --write`."""
    open_account(functions, witness)
    found = Meter(functions, witness, monkeypatch).measured(MEASURED.log_bytes)
    if os.environ.get("MEASURE"):
        found.write()
    assert found == costs.Measured.read()


def test_a_task(functions: Functions, witness: Witness) -> None:
    open_account(functions, witness)
    run_task(functions)
    assert counted(witness) == units(costs.task(ASSUMED, MEASURED))


def run_task(functions: Functions) -> None:
    task_id = begin(functions, "usual")
    work(functions, task_id)
    for _ in range(ASSUMED.polls // 2):
        assert result(functions, "tasks/get", {"taskId": task_id})["status"] == "input_required"
    result(
        functions, "tasks/update", {"taskId": task_id, "inputResponses": {"one": accept(text="x")}}
    )
    work(functions, task_id)
    for _ in range(ASSUMED.polls // 2):
        assert result(functions, "tasks/get", {"taskId": task_id})["status"] == "completed"


def test_a_task_of_many_steps(functions: Functions, witness: Witness) -> None:
    open_account(functions, witness)
    run_long_task(functions)
    assert counted(witness) == units(costs.long_task(ASSUMED, MEASURED))


def run_long_task(functions: Functions) -> None:
    task_id = begin(functions, "long")
    work(functions, task_id)
    for _ in range(ASSUMED.polls):
        assert result(functions, "tasks/get", {"taskId": task_id})["status"] == "completed"


# Bytes of logs


@pytest.mark.parametrize("form", costs.FORMATS)
@pytest.mark.parametrize("level", costs.LEVELS)
def test_the_bytes_of_logs_are_those_that_the_functions_write(
    environ: dict[str, str],
    witness: Witness,
    capsys: pytest.CaptureFixture[str],
    level: str,
    form: str,
) -> None:
    """With MEASURE=1 in the environment, they are written down. Times have more digits on some
    days."""
    name = "shop-GatewayFunction-1A2B3C4D5E6F"
    logs = {"GATEWAY_LOG_LEVEL": level, "GATEWAY_LOG_FORMAT": form}
    environ |= {"AWS_LAMBDA_FUNCTION_NAME": name, **logs}
    with (
        closing(lambda_http.make_handler(environ)) as http,
        closing(lambda_worker.make_handler(environ)) as worker,
    ):
        functions = Functions(http, worker)
        open_account(functions, witness)
        found = {}
        for operation, run in OPERATIONS.items():
            capsys.readouterr()
            run(functions)
            found[operation] = len("".join(capsys.readouterr()).encode())
    if os.environ.get("MEASURE"):
        measured = costs.Measured.read()
        log_bytes = {**measured.log_bytes, f"{level} {form}": found}
        replace(measured, log_bytes=log_bytes).write()
    for operation, size in MEASURED.log_bytes[f"{level} {form}"].items():
        assert found[operation] == pytest.approx(size, rel=0.1), operation


def call_plain(functions: Functions) -> None:
    result(functions, "tools/call", {"name": "plain", "arguments": {}})


def ask_once(functions: Functions) -> None:
    result(functions, "tools/call", {"name": "ask", "arguments": {}})


def sweep(functions: Functions) -> None:
    functions.worker(recorded("schedule"), LambdaContext())


OPERATIONS: dict[str, Callable[[Functions], None]] = {
    "plain call": call_plain,
    "round": ask_once,
    "task": run_task,
    "long task": run_long_task,
    "sweep": sweep,
}


def test_a_log_for_debugging_has_no_keys_and_no_rows(
    environ: dict[str, str], witness: Witness, capsys: pytest.CaptureFixture[str]
) -> None:
    """botocore logs requests and answers for debugging, and with them what they contain."""
    environ["GATEWAY_LOG_LEVEL"] = "debug"
    with (
        closing(lambda_http.make_handler(environ)) as http,
        closing(lambda_worker.make_handler(environ)) as worker,
    ):
        functions = Functions(http, worker)
        ask_once(functions)
        run_task(functions)
    written = "".join(capsys.readouterr())
    client = moto_server.session().client("secretsmanager")
    secret = client.get_secret_value(SecretId=environ["GATEWAY_STATE_KEYS_SECRET"])["SecretString"]
    assert '"request"' in written
    assert secret not in written
    assert "TableName" not in written


def test_a_resend_costs_a_write_a_message_and_a_turn() -> None:
    none, one = costs.task(ASSUMED, MEASURED), costs.task(replace(ASSUMED, resends=1), MEASURED)
    assert one.writes - none.writes == MEASURED.resend.together
    assert (one.messages - none.messages, one.turns - none.turns) == (3, 1)


def test_a_sweep_that_finds_nothing_writes_its_time(functions: Functions, witness: Witness) -> None:
    sweep(functions)
    used = counted(witness)
    assert (used.writes, used.messages) == (MEASURED.sweep.together, 0)


def test_an_alarm_costs_by_the_metrics_that_it_looks_at() -> None:
    template = StackTemplate({}, {})
    seen = [alarm.metrics for alarm in alarms(template).values()]
    assert costs.alarm_metrics(template) == sum(map(len, seen)) > len(seen)


def test_a_line_of_the_api_is_as_long_as_is_said() -> None:
    stage = StackTemplate({}, {}).properties("ApiStage")
    values = {
        "$context.requestId": "BqZ8fjVdliAEJpQ=",
        "$context.integration.requestId": "8f7d3b1e-8f7d-8f7d-8f7d-8f7d3b1e8f7d",
        "$context.apiId": "a1b2c3d4e5",
        "$context.httpMethod": "POST",
        "$context.routeKey": "$default",
        "$context.status": "200",
        "$context.responseLatency": "23",
    }
    line = json.loads(stage["AccessLogSettings"]["Format"])
    logged = json.dumps(
        {name: values.get(value, "-") for name, value in line.items()}, separators=(",", ":")
    )
    assert costs.AWS_LOG_BYTES["api"] * 0.9 <= len(logged) + 26 <= costs.AWS_LOG_BYTES["api"]


def test_options_are_paid_for_by_the_month_and_by_the_cold_start() -> None:
    rows = dict(costs.options(costs.Prices(), replace(ASSUMED, cold=0.5, cold_ms=200), 2))
    cold, snapshots = (
        rows.pop("cold starts, one request in 2"),
        rows.pop("`SnapStart=on`, likewise"),
    )
    assert cold == [0, pytest.approx(500_000 * 0.2 * 2 * costs.Prices().gb_s)]
    assert snapshots[0] == pytest.approx(2 * 30 * 86_400 * costs.Prices().snapshot)
    assert snapshots[1] == pytest.approx(500_000 * 2 * costs.Prices().restore)
    assert all(month or million for month, million in rows.values())


def test_what_a_deployment_keeps_is_bounded_by_requests_units_or_an_index_key() -> None:
    one = costs.Writes(1, 1, 1)
    writes: dict[str, Any] = {
        name: one for name, kind in vars(MEASURED).items() if isinstance(kind, costs.Writes)
    }
    alike = replace(MEASURED, **writes)
    template = StackTemplate({}, {})
    held = {name: tasks[0] for name, tasks in costs.ceilings(template, alike, ASSUMED)}
    written = alike.task(ASSUMED)
    requests = costs.task(ASSUMED, alike).requests
    assert held["API, 1,000 requests a second (`RequestRate`)"] == 1_000 / requests
    assert held["new table, 4,000 units; 8 shards"] == 4_000 / written.table
    assert held["warmed table and indexes, 40,000 units; 8 shards"] == 8_000 / written.due
    assert held["warmed table and indexes, 40,000 units; 32 shards"] == 32_000 / written.due
