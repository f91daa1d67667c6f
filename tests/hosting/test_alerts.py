"""The alerts for Prometheus: rules that it accepts, which fire on what they are for, on metrics that
the documentation tells, each with its line in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from roundgate_aws.template import StackTemplate
from tests.support.documents import ROOT

FILE = ROOT / "examples" / "monitoring" / "alerts.yaml"
OPERATOR = ROOT / "examples" / "self-hosting" / "kubernetes" / "monitoring"
GROUPS = yaml.safe_load(FILE.read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUPS[0]["rules"]}
RUNBOOK = (ROOT / "docs" / "runbooks" / "alerts.md").read_text()
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)

CALLS = "mcp_server_operation_duration_seconds_count"
TOOLS = "roundgate_tools_calls_total"
TURNS = "roundgate_tasks_turn_duration_seconds_count"
STORE = "roundgate_store_duration_seconds_count"
BUCKET = "mcp_server_operation_duration_seconds_bucket"
SLOW = {f'{BUCKET}{{mcp_method_name="tools/call",le="{le}"}}': "0x60" for le in ("0.01", "30")}
FIRES: dict[str, dict[str, str]] = {
    "RoundgateDown": {'up{job="gateway"}': "0x60"},
    "RoundgateErrors": {f'{CALLS}{{error_type="-32603"}}': "0+1x60", f"{CALLS}{{}}": "0+4x60"},
    # 20 of 20 calls failed before the first scrape, and there was no other
    "RoundgateToolFailures": {f'{TOOLS}{{backend="shop",outcome="unavailable"}}': "_x57 20x3"},
    "RoundgateStoreErrors": {
        f'{STORE}{{error_type="StoreAway"}}': "0+5x60",
        f"{STORE}{{}}": "0x60",
    },
    "RoundgateIssuerAway": {'roundgate_auth_refused_total{reason="keys unavailable"}': "_x58 3x2"},
    "RoundgateAuditUnwritable": {"roundgate_audit_unwritable": "0x57 1x3"},
    "RoundgateOverdueTasks": {"roundgate_tasks_overdue_seconds": "0+60x60"},
    "RoundgateNoSweep": {"roundgate_tasks_overdue_seconds": "0x20 stale"},
    "RoundgateTakeovers": {'roundgate_tasks_takeovers_total{gen_ai_tool_name="t"}': "_x55 3x5"},
    "RoundgateWorkerFaults": {f'{TURNS}{{outcome="fault"}}': "0+1x60"},
    "RoundgateGivenUp": {f'{TURNS}{{outcome="given up"}}': "_x58 1x2"},
    "RoundgateFailedSteps": {'roundgate_tasks_ended_total{outcome="step_failed"}': "1x57 2x3"},
    "RoundgateBacklog": {"roundgate_queue_messages": "1x60"},
    "RoundgateTaskGrowth": {"roundgate_tasks_created_total": "0+100x120"},
    "RoundgateSlowCalls": {
        **SLOW,
        f'{BUCKET}{{mcp_method_name="tools/call",le="60"}}': "0+10x60",
        f'{BUCKET}{{mcp_method_name="tools/call",le="+Inf"}}': "0+10x60",
        f'{CALLS}{{mcp_method_name="tools/call"}}': "0+10x60",
    },
    "RoundgateSlowStore": {
        'roundgate_store_duration_seconds_bucket{le="1"}': "0x60",
        'roundgate_store_duration_seconds_bucket{le="2"}': "0+10x60",
        'roundgate_store_duration_seconds_bucket{le="+Inf"}': "0+10x60",
    },
    "RoundgateCallsRefused": {'roundgate_calls_refused_total{limit="default"}': "0+10x60"},
    "RoundgateUnknownKeys": {'roundgate_seals_refused_total{key="unknown"}': "_x58 5x2"},
    "RoundgateBackendMissing": {"roundgate_backends_missing": "1x60"},
    "RoundgateCircuitOpen": {'roundgate_backends_circuit{backend="b",host="h"}': "1x60"},
}
"""Series, a value each minute, on which each fires after an hour."""
QUIET = {
    'up{job="gateway"}': "1x60",
    f"{CALLS}{{}}": "0+20x60",
    f'{CALLS}{{error_type="-32603"}}': "_x57 1x3",
    f'{CALLS}{{error_type="tool_error"}}': "0+10x60",
    f'{TOOLS}{{backend="shop",outcome="ok"}}': "0+20x60",
    f'{TOOLS}{{backend="shop",outcome="tool_error"}}': "0+20x60",
    f'{TOOLS}{{backend="shop",outcome="unavailable"}}': "0+1x60",
    f"{STORE}{{}}": "0+100x60",
    f'{STORE}{{error_type="Conflict"}}': "0+100x60",
    "roundgate_tasks_overdue_seconds": "30x60",
    'roundgate_tasks_takeovers_total{gen_ai_tool_name="t"}': "1x60",
    f'{TURNS}{{outcome="finished"}}': "0+20x60",
    'roundgate_tasks_ended_total{outcome="step_failed"}': "1x60",
    "roundgate_queue_messages": "0 5 0 7 0 5 0 9 0 5 0 7 0 0 0 0 0 0x44",
    "roundgate_tasks_created_total": "0+100x60",
    'roundgate_tasks_ended_total{outcome="ok"}': "0+100x60",
    "roundgate_backends_missing": "0x60",
    "roundgate_audit_unwritable": "1x5 0x55",
    'roundgate_auth_refused_total{reason="expired"}': "0+10x60",
    'roundgate_backends_circuit{backend="b",host="h"}': "0x60",
}
"""An hour in which nothing needs anybody."""


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    command = [str(PROMTOOL), "check", "rules", "--lint=all", "--lint-fatal", str(FILE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_none_fires_in_a_quiet_hour(tmp_path: Path) -> None:
    assert fired(tmp_path, list(RULES), QUIET, "1h") == set()


@needs_promtool
@pytest.mark.parametrize("name", FIRES)
def test_it_fires_on(tmp_path: Path, name: str) -> None:
    after = "2h" if name == "RoundgateTaskGrowth" else "1h"
    assert fired(tmp_path, [name], FIRES[name], after) == {name}


def fired(folder: Path, names: list[str], series: dict[str, str], after: str) -> set[str]:
    """The alerts that fire after a time. promtool is told to expect none, and shows each that it
    got."""
    values = [{"series": key, "values": value} for key, value in series.items()]
    expected = [{"eval_time": after, "alertname": name, "exp_alerts": []} for name in names]
    case = {"interval": "1m", "input_series": values, "alert_rule_test": expected}
    path = folder / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "tests": [case]}))
    command = [str(PROMTOOL), "test", "rules", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = set(re.findall(r'Labels:\{alertname="(\w+)"', ran.stderr))
    assert found or ran.returncode == 0, ran.stdout + ran.stderr
    return found


def test_each_alert_is_tested_and_names_its_line_of_the_runbook() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (page|ticket) \|", RUNBOOK, re.MULTILINE)
    assert dict(rows) == {name: rule["labels"]["severity"] for name, rule in RULES.items()}
    assert FIRES.keys() == RULES.keys()
    for name, rule in RULES.items():
        assert rule["annotations"]["runbook"] == f"roundgate docs runbooks/alerts: {name}"


def test_each_alarm_of_aws_has_an_alert_here() -> None:
    alarms = set(StackTemplate().named("AWS::CloudWatch::Alarm"))
    assert set(re.findall(r"`(\w+Alarm)`", RUNBOOK)) == alarms


def test_each_metric_of_an_alert_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    for name, rule in RULES.items():
        for metric in re.findall(r"\b(?:mcp_server|http|roundgate)_\w+", rule["expr"]):
            instrument = re.sub(r"_(count|bucket)$", "", metric)
            assert f"| `{instrument}` |" in page, name


def test_the_operator_of_prometheus_gets_the_same_rules() -> None:
    (rule,) = yaml.safe_load_all((OPERATOR / "alerts.yaml").read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"]["groups"] == GROUPS
    (pods,) = yaml.safe_load_all((OPERATOR / "pods.yaml").read_text())
    assert (pods["apiVersion"], pods["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    files = yaml.safe_load((OPERATOR / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in OPERATOR.iterdir()} == {"kustomization.yaml", *files}
