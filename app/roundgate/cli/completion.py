"""`roundgate completion bash|zsh|fish`: a script that has a shell complete
commands, actions and options.

The script holds all words; completing runs nothing of this program.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final


def run(arguments: argparse.Namespace) -> int:
    """Print the script for a shell."""
    from roundgate.cli import make_parser

    words = dict(words_of(make_parser()))
    print(_SCRIPTS[arguments.shell](words))
    return 0


def words_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """What may follow each command and action: names and options, in the order of their help."""
    words: list[str] = []
    below: Mapping[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
            words += below
        elif action.help != argparse.SUPPRESS:
            words += [one for one in action.option_strings if one.startswith("--")]
            if not action.option_strings and action.choices is not None:
                words += map(str, action.choices)
    yield path, words
    for name, one in below.items():
        yield from words_of(one, (*path, name))


def _bash(words: Mapping[tuple[str, ...], list[str]]) -> str:
    cases = "\n".join(
        f'    "{" ".join(path)}") words="{" ".join(found)}" ;;' for path, found in words.items()
    )
    return f"""\
_roundgate() {{
  local path="" next word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    next="${{path:+$path }}$word"
    case "$next" in {_patterns(words)}) path="$next" ;; esac
  done
  case "$path" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _roundgate roundgate"""


def _zsh(words: Mapping[tuple[str, ...], list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: Mapping[tuple[str, ...], list[str]]) -> str:
    cases = "\n".join(
        f'    case "{" ".join(path)}"\n      printf "%s\\n" {" ".join(found)}'
        for path, found in words.items()
        if found
    )
    return f"""\
function __roundgate
  set -l path ""
  for word in (commandline -opc)[2..-1]
    set -l next (string trim -- "$path $word")
    switch "$next"
      case {" ".join(f'"{" ".join(path)}"' for path in words if path)}
        set path "$next"
    end
  end
  switch "$path"
{cases}
  end
end
complete -c roundgate -a "(__roundgate)\""""


def _patterns(words: Mapping[tuple[str, ...], list[str]]) -> str:
    return "|".join(f'"{" ".join(path)}"' for path in words if path)


_SCRIPTS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}
