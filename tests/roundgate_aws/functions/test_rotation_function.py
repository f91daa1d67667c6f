"""The keys of requestState rotate without a round being lost, step by step as
Secrets Manager asks for it.

boto3 over real HTTP, moto's server at the other end. moto runs no function, so what AWS does before
it invokes one is done here: a version without a value is staged as pending.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from roundgate.auth.principal import LOCAL
from roundgate.tokens import keys
from roundgate.tokens.sealed import KeyRing
from roundgate_aws.template import StackTemplate
from tests.support import moto_server

pytest.importorskip("boto3")

from infra.rotation import rotate_keys

REGION = "eu-central-1"
ALL = ("createSecret", "setSecret", "testSecret", "finishSecret")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server.running() as url:
        yield url


@dataclass
class Secret:
    """A secret whose first value is made up as the template says."""

    client: Any
    arn: str

    @property
    def ring(self) -> str:
        # AWS takes this stage where none is named; moto then takes the version
        # that was current at first
        text: str = self.client.get_secret_value(SecretId=self.arn, VersionStage="AWSCURRENT")[
            "SecretString"
        ]
        return text

    @property
    def stages(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.client.describe_secret(SecretId=self.arn)[
            "VersionIdsToStages"
        ]
        return found

    def value(self, version: str) -> str:
        text: str = self.client.get_secret_value(SecretId=self.arn, VersionId=version)[
            "SecretString"
        ]
        return text

    def begin(self) -> str:
        """The version that a rotation is to fill."""
        from moto.backends import get_backend

        version = str(uuid.uuid4())
        (kept,) = (
            one
            for one in get_backend("secretsmanager")["123456789012"][REGION].secrets.values()
            if one.arn == self.arn
        )
        kept.versions[version] = {
            "createdate": int(time.time()),
            "version_id": version,
            "version_stages": ["AWSPENDING"],
        }
        return version

    def go_on(self, version: str, *steps: str) -> None:
        """Steps of a rotation."""
        for step in steps:
            event = {"SecretId": self.arn, "ClientRequestToken": version, "Step": step}
            rotate_keys.handler(event, None, self.client)

    def rotate(self) -> None:
        """A rotation from its beginning to its end."""
        self.go_on(self.begin(), *ALL)


@pytest.fixture
def secret(endpoint: str) -> Secret:
    client = moto_server.session().client("secretsmanager", endpoint_url=endpoint)
    how = StackTemplate({}, {}).properties("StateKeys")["GenerateSecretString"]
    made = client.get_random_password(**how)["RandomPassword"]
    return Secret(
        client, client.create_secret(Name=f"keys-{uuid.uuid4()}", SecretString=made)["ARN"]
    )


def test_what_the_template_makes_up_is_a_key(secret: Secret) -> None:
    (key,) = keys.parse(secret.ring, "test")
    ring = KeyRing([key])
    assert ring.open(ring.seal(b"state", LOCAL), LOCAL) == b"state"


def test_replicas_one_rotation_apart_open_each_others_state(
    secret: Secret,
) -> None:
    for _ in range(5):
        before = KeyRing(keys.parse(secret.ring, "test"))
        secret.rotate()
        after = KeyRing(keys.parse(secret.ring, "test"))
        assert before.open(after.seal(b"state", LOCAL), LOCAL) == b"state"
        assert after.open(before.seal(b"state", LOCAL), LOCAL) == b"state"
    assert len(keys.parse(secret.ring, "test")) == 3


def test_the_sealing_key_changes_from_the_second_rotation_on(secret: Secret) -> None:
    made_up, sealing = secret.ring, []
    for _ in range(4):
        secret.rotate()
        sealing.append(secret.ring.split(",")[0])
    assert sealing[0] == made_up  # the next one has to be known everywhere first
    assert len(set(sealing)) == 4


def test_until_it_is_finished_replicas_read_the_ring_from_before(secret: Secret) -> None:
    before, version = secret.ring, secret.begin()
    for step in ALL[:-1]:
        secret.go_on(version, step)
        assert secret.ring == before
    secret.go_on(version, "finishSecret")
    assert secret.ring == secret.value(version) != before


def test_a_rotation_ends_in_a_state_from_which_the_next_one_may_begin(secret: Secret) -> None:
    (first,) = secret.stages
    version = secret.begin()
    secret.go_on(version, *ALL)
    assert secret.stages[first] == ["AWSPREVIOUS"]
    assert "AWSCURRENT" in secret.stages[version]
    pending = [one for one, marks in secret.stages.items() if "AWSPENDING" in marks]
    assert pending in ([], [version])


def test_a_step_that_is_tried_again_makes_no_second_key(secret: Secret) -> None:
    version = secret.begin()
    secret.go_on(version, "createSecret")
    made = secret.value(version)
    secret.go_on(version, "createSecret", *ALL, *ALL)
    assert secret.ring == made


def test_a_ring_that_no_replica_could_use_is_not_finished(secret: Secret) -> None:
    version = secret.begin()
    secret.client.put_secret_value(
        SecretId=secret.arn,
        ClientRequestToken=version,
        SecretString="c2hvcnQ=",
        VersionStages=["AWSPENDING"],
    )
    with pytest.raises(ValueError, match="wrong length") as caught:
        secret.go_on(version, "testSecret")
    assert "c2hvcnQ" not in str(caught.value)


def test_what_is_no_rotation_is_refused(secret: Secret) -> None:
    with pytest.raises(ValueError, match="not a step"):
        secret.go_on(secret.begin(), "paint")
    with pytest.raises(ValueError, match="does not belong to the secret"):
        secret.go_on(str(uuid.uuid4()), "createSecret")


def test_a_version_that_is_not_pending_is_refused(secret: Secret) -> None:
    (first,) = secret.stages
    secret.rotate()
    with pytest.raises(ValueError, match="not pending"):
        secret.go_on(first, "finishSecret")
    assert secret.stages[first] == ["AWSPREVIOUS"]
