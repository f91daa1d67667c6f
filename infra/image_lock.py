"""`scripts/tools image-lock`: updates infra/image.lock and infra/image-build.lock.

The locks list the container's wheels with their hashes: the newest versions that pyproject.toml
allows, for the Dockerfile's Python on both architectures.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux1")
PLATFORMS = {arch: [f"{tag}_{arch}" for tag in TAGS] for arch in ("x86_64", "aarch64")}


def resolve(requirements: list[str], python: str, arch: str) -> dict[str, tuple[str, str]]:
    """Return the version and hash of each required wheel, by name."""
    with tempfile.TemporaryDirectory() as target:
        report = Path(target) / "report.json"
        platforms = [option for tag in PLATFORMS[arch] for option in ("--platform", tag)]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--only-binary=:all:", "--target", target]
        command += ["--python-version", python, *platforms, "--report", str(report)]
        subprocess.run([*command, *requirements], check=True, cwd=ROOT)
        chosen = json.loads(report.read_text())["install"]
    wheels = {}
    for item in chosen:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        download = item["download_info"]
        if "dir_info" not in download:  # the gateway itself is built from its source
            digest = download["archive_info"]["hashes"]["sha256"]
            wheels[name] = (item["metadata"]["version"], digest)
    return wheels


def write(lock: Path, requirements: list[str], python: str) -> None:
    """Write one lock for both architectures.

    Raises:
        SystemExit: the architectures would get different versions of a package.
    """
    by_arch = [resolve(requirements, python, arch) for arch in PLATFORMS]
    lines = [f"# Written by scripts/tools image-lock for Python {python}."]
    for name in sorted({name for wheels in by_arch for name in wheels}):
        versions = {wheels[name][0] for wheels in by_arch if name in wheels}
        if len(versions) > 1:
            sys.exit(
                f"{name} has different versions for the architectures, {versions}; pin it in pyproject.toml"
            )
        hashes = sorted({wheels[name][1] for wheels in by_arch if name in wheels})
        options = [f"--hash=sha256:{digest}" for digest in hashes]
        lines.append(" \\\n    ".join([f"{name}=={versions.pop()}", *options]))
    lock.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write both locks."""
    dockerfile, project = (ROOT / "Dockerfile").read_text(), (ROOT / "pyproject.toml").read_text()
    (version,) = set(re.findall(r"^FROM python:([\d.]+)-slim", dockerfile, re.MULTILINE))
    builder = re.findall(r'^requires = \["(.*)"\]', project, re.MULTILINE)
    write(ROOT / "infra/image.lock", [".[aws,console,postgres,prometheus]"], version)
    write(ROOT / "infra/image-build.lock", builder, version)


if __name__ == "__main__":
    main()
