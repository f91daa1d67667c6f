"""A gateway.yaml with every optional section, and the job of the quickstart for a client of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from roundgate.client import Client
from tests.support.audit import KEY
from tests.support.documents import ROOT

SECTIONS: dict[str, Any] = {
    "server": {"name": "everything", "instructions": "Use calculate for sums."},
    "http": {"docs": True, "metrics": True},
    "limits": {"page_size": 2, "threads": 4},
    "rate": {
        "calls_per_minute": 6000,
        "concurrent": 50,
        "shared": True,
        "tools": {"calculate": {"calls_per_minute": 3000}},
    },
    "policy": [
        {
            "deny": {
                "tool": "calculate",
                "arguments": {"properties": {"expression": {"const": "0"}}},
            }
        },
        {"allow": {"tool": "*"}},
        {"allow": {"prompt": "*"}},
        {"allow": {"resource": "*"}},
    ],
    "state": {"lifetime_s": 600},
    "sessions": {"continue_tool": "continue_call"},
    "fallback": {"ask_in_words": True, "without_tasks": "tools"},
    "tasks": {"poll_interval_ms": 200, "lease_s": 5},
    "caching": {"tools": {"ttl_ms": 1000}},
    "audit": {"to": "files", "durable": True, "key": KEY},
    "console": {},
    "search": {"above": 1, "pinned": ["calculate"]},
    "views": [{"name": "sums", "include": [{"name": "calculate"}]}],
    "env": {"STYLE": "plain"},
}
"""Every section that a gateway.yaml may lack, turned on."""
OF_FUNCTIONS: dict[str, Any] = {
    **{name: section for name, section in SECTIONS.items() if name != "console"},
    "http": {"docs": True},
    "audit": {"to": "stdout", "key": "${AUDIT_KEY}"},
    "env": {"STYLE": "plain", "AUDIT_KEY": "${secret:audit-key}"},
}
"""The same for functions on AWS Lambda, which have no console and no metrics of their own."""
BACKENDS = [
    {"kind": "python", "name": "desk", "prefix": "", "path": "desk.py"},
    {"kind": "python", "name": "till", "prefix": "", "path": "till.py", "approve": "destructive"},
    {"kind": "skills", "name": "know", "path": "skills"},
]
TILL = '''
import os

from roundgate import Context, tool


@tool(destructive=True, task="required")
async def order(ctx: Context, what: str) -> str:
    """Order something."""
    return await ctx.step("place", place, what)


def place(what: str) -> str:
    return f"ordered {what} in {os.environ['STYLE']} style"
'''
SKILL = """---
name: sums
description: How to add numbers.
---
Use calculate.
"""


def written(folder: Path, sections: dict[str, Any]) -> Path:
    """Write a gateway.yaml with these sections, and the files that it names, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "examples/quickstart/desk.py", folder / "desk.py")
    (folder / "till.py").write_text(TILL)
    (folder / "skills/sums").mkdir(parents=True, exist_ok=True)
    (folder / "skills/sums/SKILL.md").write_text(SKILL)
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({**sections, "backends": BACKENDS}))
    return config


SUBSETS = [
    {
        name: SECTIONS[name]
        for number, name in enumerate(SECTIONS)
        if (row & (16 | number)).bit_count() % 2
    }
    for row in range(32)
]
"""Subsets in which any three of at most 16 sections are present and absent in every combination: the rows of an
orthogonal array of strength 3."""


async def job(client: Client) -> None:
    """Do what the client of the quickstart does, and what a task, a search and a skill need."""
    names = {tool.name for tool in await client.tools()}
    assert {"calculate", "search_tools", "describe_tool", "call_tool"} <= names
    third = await client.call("calculate", {"expression": "(1 + 1/3) * 3"})
    assert third.structured == {"exact": "4", "decimal": 4.0}
    refused = await client.call("calculate", {"expression": "0"})
    assert refused.is_error
    found = await client.call("search_tools", {"query": "compare two texts"})
    assert "diff" in found.text
    lines = {"before": "a\nb", "after": "a\nc"}
    changed = await client.call("call_tool", {"name": "diff", "arguments": lines})
    assert "-b\n+c" in changed.text
    primes = await client.call("find_primes", {"limit": 100_000})
    assert primes.structured[0] == 99_991
    ordered = await client.call("order", {"what": "tea"}, answers={"approve": {"approve": True}})
    assert ordered.text == "ordered tea in plain style"
    style = await client.read("desk://styles/plain")
    assert "Short sentences" in str(style.contents)
    told = await client.prompt("describe_change", {"before": "a", "after": "b", "style": "formal"})
    assert len(told.messages) == 2
    (skill,) = await client.skills()
    assert b"Use calculate" in await client.read_skill(skill)
