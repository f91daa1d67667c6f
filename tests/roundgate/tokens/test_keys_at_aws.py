"""Keys in AWS Secrets Manager and under AWS KMS: boto3 over real HTTP, moto's
server at the other end."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from roundgate.errors import ConfigError
from roundgate.main import create_app
from roundgate.runtime.startup import make_ring
from roundgate.settings.process import Settings, from_environment
from roundgate.tokens import keys
from roundgate.tokens.sealed import Key
from tests.support import moto_server, root_logger
from tests.support.asgi import config_file
from tests.support.clocks import FixedClock
from tests.support.functions import add

boto3 = pytest.importorskip("boto3")

NAME = "gateway/state-keys"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server.running() as url:
        yield url


@pytest.fixture(autouse=True)
def aws(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose role is set up; each test finds an empty account."""
    moto_server.machine(monkeypatch, endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def ring(**environment: str) -> list[str]:
    """The names of the keys that a gateway with these variables has."""
    using: Settings = from_environment(environment)
    return [key.id for key in make_ring(config_file(add).config, using, FixedClock()).keys]


def secret(**value: Any) -> str:
    client = boto3.client("secretsmanager")
    arn: str = client.create_secret(
        Name=f"{NAME}/{len(client.list_secrets()['SecretList'])}", **value
    )["ARN"]
    return arn


def test_the_keys_of_a_secret_are_the_ring(endpoint: str) -> None:
    one, two = keys.new_key(), keys.new_key()
    expected = [Key(base64.b64decode(text)).id for text in (one, two)]
    assert ring(GATEWAY_STATE_KEYS_SECRET=secret(SecretString=f"{one},{two}\n")) == expected


def test_data_keys_are_decrypted_in_their_order() -> None:
    kms = boto3.client("kms")
    key_id = kms.create_key()["KeyMetadata"]["KeyId"]
    made = [kms.generate_data_key(KeyId=key_id, KeySpec="AES_256") for _ in range(2)]
    text = ", ".join(base64.b64encode(one["CiphertextBlob"]).decode() for one in made)
    assert ring(GATEWAY_STATE_KEYS_KMS=text) == [Key(one["Plaintext"]).id for one in made]


def complaint(**environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        ring(**environment)
    (problem,) = caught.value.problems
    assert problem.path == next(iter(environment))
    assert problem.remedy
    return str(problem)


def test_a_secret_that_does_not_exist_is_named_with_what_to_check() -> None:
    said = complaint(GATEWAY_STATE_KEYS_SECRET="nowhere")
    assert "ResourceNotFoundException" in said
    assert "region" in said


def test_a_secret_with_a_wrong_key_tells_its_place_and_not_its_value() -> None:
    said = complaint(GATEWAY_STATE_KEYS_SECRET=secret(SecretString=f"{keys.new_key()},c2hvcnQ="))
    assert "key 2: a state key has 32 bytes, not 5" in said
    assert "c2hvcnQ" not in said


def test_a_binary_secret_is_refused() -> None:
    assert "is binary" in complaint(GATEWAY_STATE_KEYS_SECRET=secret(SecretBinary=bytes(32)))


def test_a_data_key_that_is_not_base64_is_named_by_its_place() -> None:
    said = complaint(GATEWAY_STATE_KEYS_KMS="correct horse")
    assert "key 1 is not base64" in said
    assert "horse" not in said


def test_a_data_key_of_another_length_is_named_by_its_place() -> None:
    kms = boto3.client("kms")
    key_id = kms.create_key()["KeyMetadata"]["KeyId"]
    short = kms.generate_data_key(KeyId=key_id, NumberOfBytes=16)["CiphertextBlob"]
    assert "key 1: a state key has 32 bytes, not 16" in complaint(
        GATEWAY_STATE_KEYS_KMS=base64.b64encode(short).decode()
    )


def test_a_ciphertext_that_kms_does_not_take_is_a_problem() -> None:
    assert "KMS" in complaint(GATEWAY_STATE_KEYS_KMS=base64.b64encode(b"x" * 80).decode())


def test_aws_that_cannot_be_reached_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "EndpointConnectionError" in complaint(GATEWAY_STATE_KEYS_SECRET=NAME)


def test_a_missing_region_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match=r"AWS_DEFAULT_REGION: is needed for kms"):
        ring(GATEWAY_STATE_KEYS_KMS=keys.new_key())


def test_the_entry_point_reads_the_ring_from_the_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("served")
    (folder / "tools.py").write_text(
        "from roundgate import tool\n\n\n@tool\ndef one() -> int:\n    return 1\n"
    )
    (folder / "gateway.yaml").write_text(
        "backends:\n  - {kind: python, name: tools, path: tools.py}\n"
    )
    monkeypatch.setenv("GATEWAY_CONFIG", str(folder / "gateway.yaml"))
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "mcp")
    monkeypatch.setenv("GATEWAY_ALLOW_ANONYMOUS", "true")
    monkeypatch.setenv("GATEWAY_STATE_KEYS_SECRET", secret(SecretString=keys.new_key()))
    with root_logger.lent():
        assert create_app().title == "roundgate"
