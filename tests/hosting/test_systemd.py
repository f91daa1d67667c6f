"""The units of examples/self-hosting/systemd: systemd knows their settings, and their commands start."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from roundgate_aws.machine import reserved_port
from tests.support.asgi import STATE_KEY
from tests.support.documents import ROOT
from tests.support.server import Server, end, start, wait_until_it_answers

UNITS = sorted((ROOT / "examples/self-hosting/systemd").glob("*.service"))
PROGRAM = "/opt/roundgate/bin/roundgate"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_no_remark(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))  # which is there
    ran = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    ours = [line for line in ran.stderr.splitlines() if unit.stem.rstrip("@") in line]
    assert ours == []


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_little_is_exposed(unit: Path, tmp_path: Path) -> None:
    copy = shutil.copy(unit, tmp_path / unit.name.replace("@", ""))
    command = [str(ANALYZE), "security", "--offline=true", "--threshold=20", str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]  # an exposure of at most 2.0 of 10


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_each_credential_that_a_variable_names_is_loaded(unit: Path) -> None:
    found = settings(unit)
    loaded = {credential.split(":")[0] for credential in found["LoadCredential"]}
    assert set(re.findall(r"%d/(\w+)", " ".join(found["Environment"]))) == loaded
    assert found["KillMode"] == ["mixed"]


def test_the_command_of_the_gateway_serves_and_stops(tmp_path: Path) -> None:
    (unit,) = (unit for unit in UNITS if unit.stem == "roundgate")
    found = settings(unit)
    (command,) = found["ExecStart"]
    (variables,) = found["Environment"]
    config = tmp_path / "gateway.yaml"
    config.write_text((ROOT / "examples/self-hosting/gateway/gateway.yaml").read_text())
    shutil.copy(ROOT / "examples/self-hosting/gateway/tools.py", tmp_path)
    (tmp_path / "state_keys").write_text(STATE_KEY)
    (tmp_path / "store").write_text(f"sqlite:///{tmp_path}/gateway.sqlite3\n")
    environment = dict(
        variable.replace("%d", str(tmp_path)).split("=", 1) for variable in shlex.split(variables)
    )
    environment["GATEWAY_DRAIN_S"] = "0"
    with reserved_port() as port:
        words = command.replace("/etc/roundgate/gateway.yaml", str(config)).split()
        assert words[0] == PROGRAM
        words = [str(Path(sys.executable).with_name("roundgate")), *words[1:]]
        process = start(
            [str(port) if word == "8080" else word for word in words],
            tmp_path / "log",
            {**os.environ, **environment},
        )
        server = Server(process, port, tmp_path / "log")
        try:
            wait_until_it_answers(server)
            assert httpx.get(f"{server.url}/readyz", timeout=60).json() == {"status": "ready"}
            assert server.stop() == 0
        finally:
            end(process)
