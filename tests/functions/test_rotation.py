"""The keys of requestState rotate without a round being lost, step by step as Secrets Manager asks for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.auth.principal import LOCAL
from app.tokens import keys
from app.tokens.sealed import KeyRing

boto3 = pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def rotation() -> ModuleType:
    path = Path(__file__).parents[2] / "infra/rotation/rotate_keys.py"
    spec = importlib.util.spec_from_file_location("rotate_keys", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Versions:
    """Secrets Manager, as far as a rotation asks it: versions and the stages they are at."""

    class exceptions:
        class ResourceNotFoundException(Exception):
            pass

    def __init__(self, ring: str) -> None:
        self.values = {"v0": ring}
        self.stages: dict[str, list[str]] = {"v0": ["AWSCURRENT"]}

    def describe_secret(self, SecretId: str) -> dict[str, Any]:
        return {"VersionIdsToStages": self.stages}

    def get_secret_value(self, SecretId: str, VersionStage: str, VersionId: str | None = None) -> dict[str, str]:
        for version, stages in self.stages.items():
            if VersionStage in stages and VersionId in (None, version) and version in self.values:
                return {"SecretString": self.values[version]}
        raise self.exceptions.ResourceNotFoundException

    def put_secret_value(
        self, SecretId: str, ClientRequestToken: str, SecretString: str, VersionStages: list[str]
    ) -> None:
        self.values[ClientRequestToken] = SecretString
        self.stages[ClientRequestToken] = VersionStages

    def update_secret_version_stage(
        self, SecretId: str, VersionStage: str, MoveToVersionId: str, RemoveFromVersionId: str
    ) -> None:
        self.stages[RemoveFromVersionId] = ["AWSPREVIOUS"]
        self.stages[MoveToVersionId] = [VersionStage]

    def rotate(self, rotation: ModuleType, version: str, *, steps: tuple[str, ...]) -> None:
        self.stages.setdefault(version, ["AWSPENDING"])
        for step in steps:
            event = {"SecretId": "keys", "ClientRequestToken": version, "Step": step}
            rotation.handler(event, None, self)

    @property
    def current(self) -> str:
        return self.get_secret_value("keys", "AWSCURRENT")["SecretString"]


ALL = ("createSecret", "setSecret", "testSecret", "finishSecret")
MADE_UP = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ"
"""As `GenerateSecretString` makes the first one."""


def test_a_replica_that_is_one_rotation_behind_opens_what_the_newest_seals_and_the_other_way_round(
    rotation: ModuleType,
) -> None:
    secret = Versions(MADE_UP)
    for number in range(1, 6):
        before = KeyRing(keys.parse(secret.current, "test"))
        secret.rotate(rotation, f"v{number}", steps=ALL)
        after = KeyRing(keys.parse(secret.current, "test"))
        assert before.open(after.seal(b"state", LOCAL), LOCAL) == b"state"
        assert after.open(before.seal(b"state", LOCAL), LOCAL) == b"state"
    assert len(keys.parse(secret.current, "test")) == 3


def test_the_sealing_key_changes_from_the_second_rotation_on(rotation: ModuleType) -> None:
    secret = Versions(MADE_UP)
    sealing = []
    for number in range(1, 5):
        secret.rotate(rotation, f"v{number}", steps=ALL)
        sealing.append(secret.current.split(",")[0])
    assert sealing[0] == MADE_UP  # the next one has to be known everywhere first
    assert len(set(sealing)) == 4


def test_a_step_that_is_tried_again_makes_no_second_key(rotation: ModuleType) -> None:
    secret = Versions(MADE_UP)
    secret.rotate(rotation, "v1", steps=("createSecret",))
    made = secret.values["v1"]
    secret.rotate(rotation, "v1", steps=("createSecret", *ALL, *ALL))
    assert secret.current == made


@pytest.mark.parametrize(("version", "step"), [("unknown", "createSecret"), ("v1", "paint")], ids=["version", "step"])
def test_what_is_no_rotation_is_refused(rotation: ModuleType, version: str, step: str) -> None:
    secret = Versions(MADE_UP)
    secret.stages["v1"] = ["AWSPENDING"]
    with pytest.raises(ValueError, match=version if version == "unknown" else "no step"):
        rotation.handler({"SecretId": "keys", "ClientRequestToken": version, "Step": step}, None, secret)
