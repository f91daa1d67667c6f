"""`roundgate package --s3`: zips in a bucket, under keys that name their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import UsageError
from roundgate_aws import parts, upload
from tests.support import moto_server

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
from botocore.stub import Stubber  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server.running() as url:
        yield url


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return boto3.client("s3", endpoint_url=server)


@pytest.fixture
def zips(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "gateway.zip", tmp_path / "worker.zip"]
    for path in paths:
        path.write_bytes(f"code of {path.stem}".encode())
    return paths


def keys(s3: Any, bucket: str) -> dict[str, Any]:
    listed = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"]: one["LastModified"] for one in listed}


@pytest.mark.parametrize("location", ["s3://releases-1/shop/", "releases-1/shop"])
def test_a_zip_is_at_the_digest_of_its_content(s3: Any, zips: list[Path], location: str) -> None:
    s3.create_bucket(Bucket="releases-1")
    urls = upload.upload(zips, location)
    digest = hashlib.sha256(b"code of gateway").hexdigest()[:32]
    assert urls[0] == f"s3://releases-1/shop/gateway-{digest}.zip"
    bucket, _, key = urls[1].removeprefix("s3://").partition("/")
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"code of worker"


def test_what_is_there_is_not_sent_again_and_other_code_has_another_key(
    s3: Any, zips: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.create_bucket(Bucket="releases-2")
    first = upload.upload(zips, "releases-2")
    client = boto3.client("s3", endpoint_url=s3.meta.endpoint_url)
    sent: list[str] = []
    client.meta.events.register(
        "before-call.s3.PutObject", lambda params, **_: sent.append(params["url_path"])
    )
    monkeypatch.setattr(upload, "_client", lambda: client)
    assert upload.upload(zips, "releases-2") == first
    assert sent == []
    zips[0].write_bytes(b"other code")
    second = upload.upload(zips, "releases-2")
    assert (second[0] != first[0], second[1]) == (True, first[1])
    assert len(sent) == 1
    assert len(keys(s3, "releases-2")) == 3


def test_the_template_in_the_bucket_names_the_code_there(
    s3: Any, zips: list[Path], tmp_path: Path
) -> None:
    s3.create_bucket(Bucket="releases-3")
    (tmp_path / "rotation").mkdir()
    (tmp_path / "rotation/rotate_keys.py").write_text("code")
    written = tmp_path / "template.yaml"
    written.write_text(parts.dump(parts.assembled("rest")))
    *code, stored_template = upload.publish(tmp_path, "releases-3")
    stored = s3.get_object(Bucket="releases-3", Key=stored_template.rpartition("/")[2])[
        "Body"
    ].read()
    assert stored == written.read_bytes()
    source = parts.load(written)["Resources"]
    functions = ("GatewayFunction", "WorkerFunction", "RotationFunction")
    assert [source[name]["Properties"]["CodeUri"] for name in functions] == code
    assert all(url.startswith("s3://releases-3/") for url in code)
    assert source["RestStage"]["Properties"]["DeploymentId"]["Ref"] in source
    assert upload.publish(tmp_path, "releases-3") == [*code, stored_template], "the same again"


def test_a_bucket_that_is_not_there_is_named(s3: Any, zips: list[Path]) -> None:
    with pytest.raises(UsageError, match=r"There is no bucket nowhere-1\.\nCreate it"):
        upload.upload(zips, "nowhere-1/shop")


def test_a_location_without_a_bucket_is_refused(zips: list[Path]) -> None:
    with pytest.raises(UsageError, match="--s3 names no bucket"):
        upload.upload(zips, "s3:///shop")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AccessDenied", "Allow s3:PutObject and s3:GetObject on arn:aws:s3:::releases/*"),
        ("ExpiredToken", "have expired.\nRenew them"),
        ("InvalidAccessKeyId", "does not accept the credentials"),
        ("PermanentRedirect", "is in another region"),
        ("SlowDown", "SlowDown"),
    ],
)
def test_a_refusal_of_s3_is_explained(
    s3: Any, zips: list[Path], monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    client = boto3.client("s3", endpoint_url=s3.meta.endpoint_url)
    with Stubber(client) as stub:
        stub.add_client_error("head_object", "403")
        stub.add_client_error("put_object", code)
        monkeypatch.setattr(upload, "_client", lambda: client)
        with pytest.raises(UsageError, match=said.replace("*", r"\*")):
            upload.upload(zips, "releases/shop")


def test_without_credentials_it_says_how_to_get_some(
    s3: Any, zips: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UsageError, match="Configure credentials"):
        upload.upload(zips, "releases/shop")
