"""`scripts/openapi-table`: what becomes of real OpenAPI documents.

    scripts/openapi-table                              GitHub's, from the npm package @octokit/openapi
    scripts/openapi-table stripe.json=https://*.stripe.com docs/digitalocean/specification

Each argument is a document or a folder of them, with the origins that its operations may have servers at behind "=",
separated by commas. Seconds are processor time, so that a busy machine tells the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from roundgate import config
from roundgate.backends import OpenApiBackendConfig, compiled, loading, write

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache/openapi"
GITHUB = "@octokit/openapi@23.0.2"
IN_PACKAGE = "package/generated/api.github.com.json"


def main() -> int:
    documents = sys.argv[1:] or [f"{github()}=https://uploads.github.com"]
    print(
        "| document | operations | left out | compile | index | a start reads it in | tools/list |"
    )
    print("|---|---|---|---|---|---|---|")
    for argument in documents:
        document, _, origins = argument.partition("=")
        print(row(Path(document).resolve(), [one for one in origins.split(",") if one]))
    return 0


def github() -> Path:
    """The document of the package, downloaded once."""
    target = CACHE / "github.json"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        npm_pack = [str(ROOT / "scripts/node"), "--npm", "pack", "--silent", GITHUB]
        told = subprocess.run(npm_pack, cwd=CACHE, stdout=subprocess.PIPE, text=True, check=True)
        with tarfile.open(CACHE / told.stdout.split()[-1]) as package:
            found = package.extractfile(IN_PACKAGE)
            assert found is not None, f"{GITHUB} has no {IN_PACKAGE}"
            target.write_bytes(found.read())
    return target


def row(document: Path, origins: list[str]) -> str:
    """One row; what is left out is told on stderr, with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        entry = {"kind": "openapi", "name": "api", "document": str(document), "origins": origins}
        gateway = Path(folder) / "gateway.json"
        gateway.write_text(
            json.dumps({"backends": [{**entry, "credential": {"bearer": "measured"}}]})
        )
        file = config.load(gateway)
        backend = file.config.backends[0]
        assert isinstance(backend, OpenApiBackendConfig)
        started = time.process_time()
        index = compiled(backend, file.origin.at("backends", 0), fetches=False)
        compiling_s = time.process_time() - started
        data = write(index)
        (Path(folder) / "api.index").write_bytes(data)
        loading_ms = min(start_ms(gateway) for _ in range(3))
        listed = sum(len(item) for _, item in loading.load(file).catalog.tool_pages.items)
    print(*index.problems, sep="\n", file=sys.stderr)
    rows, left = len(index.rows), len(index.problems)
    sizes = f"{len(data) / 1e6:.1f} MB | {loading_ms:.0f} ms | {listed / 1e6:.1f} MB"
    return f"| {document.name} | {rows + left:,} | {left} | {compiling_s:.1f} s | {sizes} |"


def start_ms(gateway: Path) -> float:
    """Processor time from a configuration to a catalog that can be served."""
    file = config.load(gateway)
    started = time.process_time()
    loading.load(file)
    return (time.process_time() - started) * 1000


if __name__ == "__main__":
    sys.exit(main())
