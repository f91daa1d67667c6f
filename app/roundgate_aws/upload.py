"""`roundgate package --s3`: the zips and the template in a bucket, for Terraform, CDK and other tools
that deploy.

    .build/gateway.zip     ──▶ s3://BUCKET/PREFIX/gateway-3f2a….zip  ◀── CodeUri ──┐
    .build/template.yaml   ──▶ s3://BUCKET/PREFIX/template-91bc….yaml ─────────────┘

A key contains a digest of the content, so equal code has one address, and a changed address is a
change that Terraform, CDK and CloudFormation deploy. A file that is there is not sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from roundgate.errors import UsageError
from roundgate_aws import packaging, template

DIGEST: Final = 32
"""The hexadecimal digits of the digest in a key."""
UNKNOWN: Final = {"404", "403", "400"}
"""The errors of HEAD after which the object is written, because its answer has the reason in its body.
403 may mean a missing object, if the caller may not list the bucket; 400, expired credentials."""
EXPIRED: Final = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
UNKNOWN_KEYS: Final = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"}
ELSEWHERE: Final = {"301", "PermanentRedirect", "AuthorizationHeaderMalformed"}


def publish(out: Path, location: str) -> list[str]:
    """Put a package into a bucket, and its addresses into its template; return the URLs of all files,
    the template last. Raise UsageError as `upload` does."""
    rotation = out / "rotation.zip"
    packaging.pack(out / "rotation", rotation)
    zips = [*(out / f"{function.name}.zip" for function in packaging.FUNCTIONS), rotation]
    urls = dict(zip((path.name for path in zips), upload(zips, location), strict=True))
    urls["rotation"] = urls.pop(rotation.name)
    template.point_to(out / "template.yaml", urls)
    return [*urls.values(), *upload([out / "template.yaml"], location)]


def upload(files: Iterable[Path], location: str) -> list[str]:
    """Put files into a bucket; return their URLs.

    Args:
        files: the files.
        location: `BUCKET` or `BUCKET/PREFIX`, with or without `s3://` in front.

    Raises:
        UsageError: the location names no bucket, or S3 refuses a request.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    if not bucket:
        raise UsageError("--s3 names no bucket: pass --s3 BUCKET or --s3 BUCKET/PREFIX")
    prefix = prefix.strip("/")
    try:
        client = _client()
        return [_placed(client, path, bucket, f"{prefix}/" if prefix else "") for path in files]
    except ClientError as error:
        raise UsageError(_explained(error, bucket, prefix)) from None
    except BotoCoreError as error:
        raise UsageError(
            f"The package cannot be sent to S3: {error}\n"
            "Configure credentials and a region, for example with `aws sso login` or AWS_PROFILE."
        ) from None


def _client() -> Any:
    import boto3

    return boto3.Session().client("s3")


def _placed(client: Any, path: Path, bucket: str, prefix: str) -> str:
    """Put one file into the bucket unless it is there; return its URL."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:DIGEST]
    key = f"{prefix}{path.stem}-{digest}{path.suffix}"
    if not _is_there(client, bucket, key):
        client.put_object(Bucket=bucket, Key=key, Body=content)
    return f"s3://{bucket}/{key}"


def _is_there(client: Any, bucket: str, key: str) -> bool:
    """Return whether an object is known to exist."""
    from botocore.exceptions import ClientError

    try:
        client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response["Error"]["Code"] in UNKNOWN:
            return False
        raise
    return True


def _explained(error: Any, bucket: str, prefix: str) -> str:
    """Return the text of an error of S3, with its remedy."""
    code = error.response["Error"]["Code"]
    at = f"s3://{bucket}/{prefix}".rstrip("/")
    if code == "NoSuchBucket":
        return f"There is no bucket {bucket}.\nCreate it (`aws s3 mb s3://{bucket}`), or name another one."
    if code == "AccessDenied":
        return (
            f"S3 does not let these credentials write to {at}.\n"
            f"Allow s3:PutObject and s3:GetObject on arn:aws:s3:::{bucket}/*, or use another profile (AWS_PROFILE)."
        )
    if code in EXPIRED:
        return "The credentials of AWS have expired.\nRenew them, for example with `aws sso login`."
    if code in UNKNOWN_KEYS:
        return f"S3 does not accept the credentials ({code}).\nCheck AWS_PROFILE and the variables AWS_*."
    if code in ELSEWHERE:
        return (
            f"The bucket {bucket} is in another region.\n"
            "Set AWS_DEFAULT_REGION to its region; the functions have to be in the same one."
        )
    return f"S3 refused the request for {at}: {error}"
