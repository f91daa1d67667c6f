"""What docs/deploy.md says that calls and tasks cost: it is computed from units, and the units are counted here."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from app import logs
from app.lambda_worker import embedded
from app.metrics import Census
from infra import costs
from tests.functions.at_aws import Functions, Witness, begin, result, work
from tests.functions.at_aws import dynamodb as dynamodb
from tests.functions.at_aws import endpoint as endpoint
from tests.functions.at_aws import environ as environ
from tests.functions.at_aws import functions as functions
from tests.functions.at_aws import witness as witness
from tests.functions.conftest import LambdaContext, recorded
from tests.support.dynamodb import ROOT
from tests.support.rounds import accept, retry

ASSUMED = costs.Assumed()


def test_the_tables_in_the_documentation_are_the_ones_that_are_computed() -> None:
    assert costs.tables(costs.Prices(), ASSUMED) in (ROOT / "docs/deploy.md").read_text("utf-8")


def test_prices_and_durations_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert costs.main(["--set", "api=0", "--set", "gateway_ms=200"]) == 0
    mine = capsys.readouterr().out
    assert "| HTTP API: requests | 0.00 | 0.00 | 0.00 |" in mine
    assert costs.tables(replace(costs.Prices(), api=0), ASSUMED) != mine


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        costs.main(["--set", "coffee=3"])
    assert "coffee" in capsys.readouterr().err


def test_the_metrics_that_are_paid_for_are_those_in_the_line_of_a_sweep() -> None:
    census = Census({"working": 1, "input_required": 1}, {"working": 1.0, "input_required": 1.0}, 1.0)
    (directive,) = embedded({**census.fields(), "late": 0}, "worker", 0)["_aws"]["CloudWatchMetrics"]
    assert len(directive["Metrics"]) == costs.METRICS


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


def counted(witness: Witness, log: io.StringIO) -> costs.Units:
    """What has been used."""
    used = witness.used
    lines = [line for line in log.getvalue().splitlines() if not _is_botocores(line)]
    return costs.Units(
        requests=used.get("gateway", 0),
        turns=used.get("worker", 0),
        writes=used.get("writes", 0),
        reads=used.get("reads", 0),
        messages=3 * used.get("sqs:SendMessage", 0),
        secret_reads=used.get("secretsmanager:GetSecretValue", 0),
        log_bytes=sum(len(line.encode()) + 1 for line in lines),
    )


def writes(witness: Witness) -> float:
    """Write units since it was last asked."""
    return witness.used.pop("writes", 0)


def _is_botocores(line: str) -> bool:
    """Whether it tells of the emulators' addresses, which no function on AWS has."""
    return str(json.loads(line).get("logger")).startswith("botocore")


def is_about(counted: costs.Units, computed: costs.Units) -> bool:
    """The same units; of the logs a fifth less at most, for times have more digits on some days."""
    assert computed.log_bytes * 0.8 <= counted.log_bytes <= computed.log_bytes, counted
    return replace(counted, log_bytes=0) == replace(computed, log_bytes=0)


def test_a_plain_call(functions: Functions, witness: Witness, log: io.StringIO) -> None:
    result(functions, "tools/call", {"name": "plain", "arguments": {}})
    assert is_about(counted(witness, log), costs.plain_call())


def test_a_call_in_rounds_uses_no_store(functions: Functions, witness: Witness, log: io.StringIO) -> None:
    params = {"name": "ask", "arguments": {}}
    asked = result(functions, "tools/call", params)
    for key in ("one", "two"):
        asked = result(functions, "tools/call", retry(params, asked, **{key: accept(text=key)}))
    seldom = replace(ASSUMED, requests_per_key_read=3)  # the keys are read once, with the first of these three
    assert is_about(counted(witness, log), costs.call_in_rounds(3, seldom))


def test_a_task(functions: Functions, witness: Witness, log: io.StringIO) -> None:
    task_id = begin(functions, "usual")
    assert writes(witness) == costs.CREATE_WRITES
    work(functions, task_id)
    assert writes(witness) == costs.CLAIM_WRITES + 2 * costs.STEP_WRITES + costs.SUSPEND_WRITES
    for _ in range(ASSUMED.polls // 2):
        assert result(functions, "tasks/get", {"taskId": task_id})["status"] == "input_required"
    result(functions, "tasks/update", {"taskId": task_id, "inputResponses": {"one": accept(text="x")}})
    assert writes(witness) == costs.ANSWER_WRITES
    work(functions, task_id)
    assert writes(witness) == costs.CLAIM_WRITES + costs.STEP_WRITES + costs.FINISH_WRITES
    for _ in range(ASSUMED.polls // 2):
        assert result(functions, "tasks/get", {"taskId": task_id})["status"] == "completed"
    assert writes(witness) == 0
    assert is_about(counted(witness, log), replace(costs.task(ASSUMED), writes=0))


def test_the_writes_of_a_task_are_those_of_its_parts() -> None:
    fewer, more = costs.task(replace(ASSUMED, steps=2)), costs.task(ASSUMED)
    assert more.writes - fewer.writes == costs.STEP_WRITES
    parts = costs.CREATE_WRITES + 2 * costs.CLAIM_WRITES + costs.SUSPEND_WRITES + costs.ANSWER_WRITES
    assert fewer.writes == parts + costs.FINISH_WRITES + 2 * costs.STEP_WRITES


def test_a_sweep_that_finds_nothing(functions: Functions, witness: Witness, log: io.StringIO) -> None:
    functions.worker(recorded("schedule"), LambdaContext())
    queries = witness.used["dynamodb:Query"]
    used = counted(witness, log)
    assert (used.writes, used.messages) == (0, 0)
    assert queries * 0.5 == costs.SWEEP_READS  # the emulator counts nothing for an index that is empty, AWS does
    assert costs.SWEEP_LOG_BYTES * 0.8 <= used.log_bytes <= costs.SWEEP_LOG_BYTES
