"""examples/self-hosting/compose.yaml: valid, hardened, and each of its services started by hand with
the command line, the environment and the files that it names.

There is no container engine here, and no package of Grafana: its provisioning is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.postgresql import Server as Database
from roundgate.client import Client
from roundgate.settings.process import Settings
from roundgate_aws.machine import reserved_port
from tests.hosting.schemas import fits
from tests.support.documents import ROOT
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.server import end, start

HERE = ROOT / "examples" / "self-hosting"
COMPOSE = yaml.safe_load((HERE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BIN = Path(sys.executable).parent
SECRETS = "/run/secrets/"


def test_it_is_a_compose_file(tmp_path: Path) -> None:
    ran = fits("compose-spec", HERE / "compose.yaml")
    assert ran.returncode == 0, ran.stdout
    broken = tmp_path / "compose.yaml"
    broken.write_text("services: {gateway: {restarts: always}}")
    assert fits("compose-spec", broken).returncode != 0, "the schema finds an unknown setting"


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_pinned_bounded_and_without_rights(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":v?\d+\.\d+", service["image"]), "a version, not a moving tag"
    assert service["restart"] == "unless-stopped"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert "user" in service or service["image"].startswith("roundgate:"), "ours is of user 10001"
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")


def test_each_file_and_secret_that_it_mounts_is_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (HERE / source).exists(), (name, source)
                assert volume.endswith(":ro"), (name, volume)
            else:
                assert source in COMPOSE["volumes"]
        used = {
            value.removeprefix(SECRETS)
            for value in service.get("environment", {}).values()
            if value.startswith(SECRETS)
        }
        assert used == set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
        assert set(service.get("networks", ())) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_each_service_is_healthy_by_a_check_of_its_own_or_its_image() -> None:
    without = {name for name, service in SERVICES.items() if "healthcheck" not in service}
    assert without == {"gateway"}
    assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
    assert SERVICES["worker"]["healthcheck"] == {"disable": True}


def test_all_processes_together_stay_below_the_connections_of_a_default_server() -> None:
    most = sum(
        SERVICES[name]["deploy"]["replicas"] * (Settings().store_connections + 1)
        for name in ("gateway", "worker")
    )
    assert most <= 100 - 3, "PostgreSQL keeps three of its hundred for superusers"
    assert "max_connections" not in str(SERVICES["database"])


def test_the_secrets_are_made_once_and_fit(tmp_path: Path) -> None:
    script = shutil.copy(HERE / "secrets.sh", tmp_path)
    subprocess.run([script], check=True, cwd="/")
    folder = tmp_path / "secrets"
    made = {file.name: file.read_text() for file in folder.iterdir()}
    assert set(made) == set(COMPOSE["secrets"])
    assert {secret["file"] for secret in COMPOSE["secrets"].values()} == {
        f"secrets/{name}" for name in made
    }
    assert f"gateway:{made['database_password']}@database" in made["database_url"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o444}
    subprocess.run([script], check=True, cwd="/")
    assert {file.name: file.read_text() for file in folder.iterdir()} == made


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((HERE / "grafana/datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((HERE / "grafana/dashboards.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    dashboard = Path(mounts["../monitoring/grafana.json"])
    assert str(dashboard.parent) == provider["options"]["path"]
    assert dashboard.suffix == ".json"


@dataclass
class Running:
    """The services of compose.yaml as processes on this machine."""

    gateways: list[str]
    workers: list[subprocess.Popen[bytes]]
    metrics: dict[str, list[str]]
    """The addresses at which Prometheus finds each service."""


@pytest.fixture(scope="module")
def services(
    postgresql_server: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """All services; the workers leave with exit status 0 at the end."""
    postgresql_server.empty()
    folder = tmp_path_factory.mktemp("services")
    subprocess.run([shutil.copy(HERE / "secrets.sh", folder)], check=True)
    url = folder / "secrets/database_url"
    url.chmod(0o644)
    url.write_text(postgresql_server.url)
    with ExitStack() as stack:
        running = Running([], [], {"gateway": [], "worker": []})
        for name in ("gateway", "worker"):
            for number in range(SERVICES[name]["deploy"]["replicas"]):
                port, metrics = (str(stack.enter_context(reserved_port())) for _ in range(2))
                process = start(
                    [port if word == "8080" else word for word in command(name)],
                    folder / f"{name}-{number}.log",
                    environment(name, folder / "secrets")
                    | {
                        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
                        "OTEL_EXPORTER_PROMETHEUS_PORT": metrics,
                    },
                )
                stack.callback(end, process)
                running.metrics[name].append(f"127.0.0.1:{metrics}")
                if name == "gateway":
                    running.gateways.append(f"http://127.0.0.1:{port}")
                else:
                    running.workers.append(process)
        for gateway in running.gateways:
            wait_until_it_answers(f"{gateway}/readyz")
        yield running
        for worker in running.workers:
            worker.terminate()
        assert [worker.wait(60) for worker in running.workers] == [0, 0]


def command(name: str) -> list[str]:
    words: list[str] = [*SERVICES[name]["entrypoint"], *SERVICES[name]["command"]]
    return [str(BIN / words[0]), *words[1:]]


def environment(name: str, secrets: Path) -> dict[str, str]:
    """The environment of a service, with its image's configuration at its place in the example."""
    (mount,) = SERVICES[name]["volumes"]
    source, target = mount.split(":")[:2]
    image = dict(re.findall(r"\b(GATEWAY_\w+)=(\S+)", (ROOT / "Dockerfile").read_text()))
    assert image["GATEWAY_CONFIG"] == f"{target}/gateway.yaml"
    return (
        image
        | {
            variable: value.replace(SECRETS, f"{secrets}/").replace("${GATEWAY_PUBLIC_URL:-}", "")
            for variable, value in SERVICES[name]["environment"].items()
        }
        | {
            "GATEWAY_CONFIG": str(HERE / source / "gateway.yaml"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
    )


def wait_until_it_answers(url: str) -> httpx.Response:
    until = time.monotonic() + 120
    while True:
        try:
            return httpx.get(url, timeout=60).raise_for_status()
        except httpx.HTTPError:
            assert time.monotonic() < until, url
            time.sleep(0.1)


async def use(running: Running) -> None:
    """Call both gateways; a task goes to the workers, and its end is read at the other gateway."""
    first, second = running.gateways
    async with Client(f"{first}/mcp") as one, Client(f"{second}/mcp") as other:
        for client in (one, other):
            assert (await client.call("greet", name="Ada")).text == "Hello Ada"
            assert (await client.call("report", months=3)).text == "total 30"


def test_gateways_and_workers_share_the_work(services: Running) -> None:
    asyncio.run(use(services))


def queries() -> Iterator[str]:
    dashboard = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "1m")


@contextmanager
def prometheus(running: Running, folder: Path) -> Iterator[str]:
    """Prometheus with the command and the file of compose.yaml. The addresses that Compose's DNS would
    give are written into the file, and the interval is a second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = "1s"
    for job in config["scrape_configs"]:
        (service,) = job.pop("dns_sd_configs")
        (name,) = service["names"]
        assert (
            str(service["port"]) == SERVICES[name]["environment"]["OTEL_EXPORTER_PROMETHEUS_PORT"]
        )
        job["static_configs"] = [{"targets": running.metrics[name]}]
    mounted = {
        path.partition(":")[2].removesuffix(":ro") for path in SERVICES["prometheus"]["volumes"]
    }
    assert set(config["rule_files"]) <= mounted
    config["rule_files"] = [str(ROOT / "examples" / "monitoring" / "alerts.yaml")]
    config["global"]["evaluation_interval"] = "1s"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = [
        option.replace("/etc/prometheus/", f"{folder}/").replace("=/prometheus", f"={folder}/data")
        for option in SERVICES["prometheus"]["command"]
    ]
    with reserved_port() as port:
        address = f"--web.listen-address=127.0.0.1:{port}"
        process = start([program, *options, address], folder / "prometheus.log")
        try:
            wait_until_it_answers(f"http://127.0.0.1:{port}/-/ready")
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)


def test_prometheus_scrapes_them_and_answers_each_query_of_the_dashboard(
    services: Running, tmp_path: Path
) -> None:
    shown: set[str] = set()
    with prometheus(services, tmp_path) as url:
        until = time.monotonic() + 60
        wanted = {
            expression
            for expression in queries()
            if re.search("mcp_server|tasks_(created|ended|claimed)|steps_duration", expression)
            and not re.search("step_failed|error_type", expression)  # nothing fails here
        }
        while not wanted <= shown:
            asyncio.run(use(services))
            assert time.monotonic() < until, wanted - shown
            for expression in queries():
                answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=60)
                assert answer.json()["status"] == "success", (expression, answer.text)
                if answer.json()["data"]["result"]:
                    shown.add(expression)
        targets = httpx.get(f"{url}/api/v1/targets", timeout=60).json()["data"]["activeTargets"]
        names = httpx.get(f"{url}/api/v1/label/__name__/values", timeout=60).json()["data"]
        labels = httpx.get(f"{url}/api/v1/labels", timeout=60).json()["data"]
        (group,) = httpx.get(f"{url}/api/v1/rules", timeout=60).json()["data"]["groups"]
    assert len(wanted) >= 5
    assert {target["health"] for target in targets} == {"up"}
    assert "roundgate_tools_calls_total" in names
    assert not [label for label in labels if label.startswith("otel_scope")]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}, group
    firing = [rule["name"] for rule in group["rules"] if rule["state"] == "firing"]
    assert firing == [], "nothing fails here"
    assert len(targets) == 4
