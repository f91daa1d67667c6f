"""What to do about a module that cannot be imported, by how it fails."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Final

import roundgate
from roundgate.backends import declare
from roundgate.backends.python.config import PythonBackendConfig

USUAL: Final = "mend the module, or point `path` (a file beside gateway.yaml) or `module` (a dotted name) at another"
_ARGUMENTS: Final = {
    "tool": declare.ToolOptions.__annotations__,
    "prompt": declare.PromptOptions.__annotations__,
    "resource": declare.ResourceOptions.__annotations__,
}


def remedy_for(error: BaseException, config: PythonBackendConfig, base: Path) -> str:
    """What to do."""
    said = str(error)
    match error:
        case TypeError() if found := re.match(r"(\w+)\(\) .*keyword argument '(\w+)'", said):
            return _of_argument(found[1], found[2])
        case ModuleNotFoundError() if (config.module or "").endswith(".py"):
            return f"a module is a dotted name: write path: {config.module}"
        case ModuleNotFoundError():
            return "install it and add it to your dependencies, or correct its name"
        case ImportError() if "relative import" in said:
            return (
                "import modules that are beside it by their names (import other), or name the package: module:"
                " package.module in place of path"
            )
        case ImportError(name="roundgate") if found := re.match(r".*?name '(\w+)'", said):
            near = get_close_matches(found[1].lower(), _exported_names(), 1)
            return (
                f"is {near[0]} meant?"
                if near
                else "see `roundgate docs reference` for what there is"
            )
        case FileNotFoundError() if config.path and (base / f"{config.path}.py").is_file():
            return f"write path: {config.path}.py"
        case FileNotFoundError() if re.search(r"\$\w", config.path or ""):
            return "write a variable in braces: ${NAME}"
        case SystemExit():
            return 'put what a script does below `if __name__ == "__main__":`'
    return USUAL


def _of_argument(function: str, name: str) -> str:
    known = _ARGUMENTS.get(function)
    if known is None:
        return USUAL
    near = get_close_matches(name.replace("_", ""), [one.replace("_", "") for one in known], 1)
    meant = next((one for one in known if near and one.replace("_", "") == near[0]), None)
    listed = ", ".join(known)
    return (
        f"is {meant} meant? @{function} takes {listed}" if meant else f"@{function} takes {listed}"
    )


def _exported_names() -> list[str]:
    """Return the names that a module of tools can import from `roundgate`."""
    return [name for name, value in vars(roundgate).items() if not isinstance(value, ModuleType)]
