"""The manifests of examples/self-hosting: valid by the schemas of Kubernetes, and consistent."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from roundgate.settings.process import from_environment
from tests.support.documents import ROOT

HERE = ROOT / "examples" / "self-hosting"
KUSTOMIZATION = yaml.safe_load((HERE / "kustomization.yaml").read_text())
RESOURCES: list[dict[str, Any]] = [
    resource
    for path in KUSTOMIZATION["resources"]
    for resource in yaml.safe_load_all((HERE / path).read_text())
]
VERSIONS = ("1.31", "1.37")
NAMES = ("gateway", "worker")


def of(kind: str, name: str) -> dict[str, Any]:
    (resource,) = (
        resource
        for resource in RESOURCES
        if (resource["kind"], resource["metadata"]["name"]) == (kind, name)
    )
    return resource


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = of("Deployment", name)["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    return dict(only)


def environment(name: str) -> dict[str, str]:
    maps = {
        generated["name"]: dict(pair.split("=", 1) for pair in generated.get("literals", ()))
        for generated in KUSTOMIZATION["configMapGenerator"]
    }
    values: dict[str, str] = {}
    for source in container(name)["envFrom"]:
        values |= maps[source["configMapRef"]["name"]]
    return values | {pair["name"]: pair["value"] for pair in container(name).get("env", ())}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "resource", RESOURCES, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}"
)
def test_each_manifest_fits_the_schema(resource: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(resource, version, strict=True)


def test_the_schema_finds_an_unknown_setting() -> None:
    broken = of("Service", "gateway") | {"specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_them() -> None:
    ran = subprocess.run(["kubectl", "kustomize", HERE], capture_output=True, text=True, check=True)
    built = list(yaml.safe_load_all(ran.stdout))
    assert len(built) == len(RESOURCES) + len(KUSTOMIZATION["configMapGenerator"])
    for resource in built:
        kubernetes_validate.validate(resource, VERSIONS[0], strict=True)
    images = re.findall(r"image: (\S+)", ran.stdout)
    assert images == ["registry.example.com/roundgate:0.1.0"] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_has_no_rights(name: str) -> None:
    spec, own = pod(name), container(name)
    assert spec["automountServiceAccountToken"] is False
    assert of("ServiceAccount", spec["serviceAccountName"])["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    user = re.search(r"^USER (\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert spec["securityContext"]["runAsUser"] == int(user[1])
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(own["resources"]) == {"requests", "limits"}


@pytest.mark.parametrize("name", NAMES)
def test_each_name_refers_to_a_resource(name: str) -> None:
    spec, own = pod(name), container(name)
    labels = of("Deployment", name)["spec"]["template"]["metadata"]["labels"]
    selectors = [
        of("Deployment", name)["spec"]["selector"]["matchLabels"],
        of("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in spec["topologySpreadConstraints"]),
    ]
    assert selectors == [labels] * len(selectors)
    assert {mount["name"] for mount in own["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }
    target = of("HorizontalPodAutoscaler", name)["spec"]["scaleTargetRef"]
    assert of(target["kind"], target["name"])["metadata"]["name"] == name
    assert "cpu" in own["resources"]["requests"], "the autoscaler needs it"
    using = environment(name)
    mounts = [mount["mountPath"] for mount in own["volumeMounts"]]
    for variable in ("GATEWAY_STORE_FILE", "GATEWAY_STATE_KEYS_FILE"):
        assert using[variable].rpartition("/")[0] in mounts
    assert "/gateway" in mounts, "where the image looks for gateway.yaml"
    ports = {port["name"]: port["containerPort"] for port in own["ports"]}
    assert str(ports["metrics"]) == using["OTEL_EXPORTER_PROMETHEUS_PORT"]


def test_the_service_leads_to_the_gateway() -> None:
    service = of("Service", "gateway")["spec"]
    labels = of("Deployment", "gateway")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == labels
    assert service["ports"][0]["targetPort"] in {
        port["name"] for port in container("gateway")["ports"]
    }


def test_readiness_is_not_liveness() -> None:
    own = container("gateway")
    paths = {
        probe: own[f"{probe}Probe"]["httpGet"]["path"]
        for probe in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert own["readinessProbe"]["timeoutSeconds"] > 3, "the store has 3 s"
    assert not [key for key in container("worker") if key.endswith("Probe")]


def test_all_pods_together_stay_below_the_connections_of_a_default_server() -> None:
    most = 0
    for name in ("gateway", "worker"):
        pods = of("HorizontalPodAutoscaler", name)["spec"]["maxReplicas"]
        surge = of("Deployment", name)["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
        plain = {key: value for key, value in environment(name).items() if "_FILE" not in key}
        most += (pods + surge) * (from_environment(plain).store_connections + 1)
    assert most <= 100 - 3, "PostgreSQL keeps three of its hundred for superusers"


def test_a_pod_has_the_time_that_it_needs_to_stop() -> None:
    from roundgate.cli.serve import LATE_S
    from roundgate.cli.worker import STOP_GRACE_S as WORKER_S
    from roundgate.tasks.pool import END_GRACE_S

    plain = {key: value for key, value in environment("gateway").items() if "_FILE" not in key}
    using = from_environment(plain)
    assert using.works is False
    late_s = LATE_S + 2 * END_GRACE_S
    assert late_s == 15, "docs/deploy.md says so"
    assert pod("gateway")["terminationGracePeriodSeconds"] >= using.grace_s + late_s
    assert pod("worker")["terminationGracePeriodSeconds"] >= WORKER_S + late_s
    probe = container("gateway")["readinessProbe"]
    assert using.accepts_s >= probe["periodSeconds"] * probe["failureThreshold"]
