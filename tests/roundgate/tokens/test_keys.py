"""Where the ring comes from: settings, a file on one machine; and what is said
of a key that is none."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from roundgate.auth.principal import LOCAL
from roundgate.errors import ConfigError, Unavailable
from roundgate.main import build_app
from roundgate.runtime.startup import make_ring
from roundgate.settings.process import Settings, from_environment
from roundgate.tokens import keys
from roundgate.tokens.sealed import Key, KeyRing
from tests.support.asgi import config_file, gateway
from tests.support.clocks import FixedClock
from tests.support.functions import add

SECRET = "bm90IGEga2V5IGF0IGFsbA=="
GOOD = base64.b64encode(bytes(range(32))).decode()


def ring(using: Settings) -> list[str]:
    """The names of the keys that a gateway with these settings has."""
    return [key.id for key in make_ring(config_file(add).config, using, FixedClock()).keys]


def test_a_new_key_is_usable_and_never_the_same() -> None:
    made = {keys.new_key() for _ in range(20)}
    assert len(made) == 20
    assert len(keys.parse(",".join(made), "test")) == 20


def test_keys_come_from_the_environment_in_their_order() -> None:
    texts = [keys.new_key() for _ in range(3)]
    using = from_environment({"GATEWAY_STATE_KEYS": f" {texts[0]},{texts[1]} ,\n{texts[2]}\n"})
    assert ring(using) == [Key(base64.b64decode(text)).id for text in texts]


def test_settings_do_not_show_the_keys() -> None:
    assert GOOD not in repr(Settings(state_keys=GOOD))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{GOOD},{SECRET}", "key 2: a state key has 32 bytes, not 16"),
        (f"{GOOD},{GOOD[:-2]}", "key 2 is not base64"),
        ("correct horse battery staple", "key 1 is not base64"),
        ("schlüssel", "key 1 is not base64"),
        (f"{GOOD},", "key 2: a state key has 32 bytes, not 0"),
        (GOOD.replace("A", "-"), "key 1 is not base64"),
        (f"{GOOD};{GOOD}", "key 1 is not base64"),
    ],
    ids=["short", "no padding", "words", "not ASCII", "empty", "base64url", "semicolon"],
)
def test_a_wrong_key_is_named_by_its_place_and_never_shown(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gateway(add, using=Settings(state_keys=text))
    (problem,) = caught.value.problems
    assert (problem.path, problem.message[: len(complaint)]) == ("GATEWAY_STATE_KEYS", complaint)
    assert "roundgate keys new" in str(problem)
    assert not [
        part for part in text.replace(";", ",").split(",") if part and part in str(caught.value)
    ]
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "a traceback would show the text that failed"


def test_a_laptop_gets_a_key_file_beside_its_database(tmp_path: Path) -> None:
    using = Settings(store=f"sqlite:///{tmp_path}/new/gateway.sqlite3")
    assert ring(using) == ring(using)
    (made,) = (tmp_path / "new").iterdir()
    assert made.name == "gateway.key"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


def test_an_existing_key_file_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "gateway.key").write_text(f"{GOOD}\n")
    assert ring(Settings(store=f"sqlite:///{tmp_path}/gateway.sqlite3")) == [
        Key(bytes(range(32))).id
    ]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", SECRET.encode(), b"nonsense"], ids=repr)
def test_a_key_file_that_holds_no_key_is_named_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "gateway.key"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"gateway\.key: key 1"):
        keys.from_file(path)
    assert path.read_bytes() == content


def test_a_wrong_key_in_a_file_names_the_variable_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{GOOD},nonsense")
    with pytest.raises(ConfigError) as caught:
        gateway(add, using=from_environment({"GATEWAY_STATE_KEYS_FILE": str(path)}))
    (problem,) = caught.value.problems
    assert problem.path == f"GATEWAY_STATE_KEYS_FILE={path}"
    assert problem.message.startswith("key 2:")


@pytest.mark.parametrize("place", ["a directory", "below a file", "a FIFO"])
def test_a_key_file_that_cannot_be_made_is_a_problem_with_a_remedy(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    paths = {"a directory": tmp_path, "below a file": tmp_path / "file/gateway.key"}
    path = paths.get(place, tmp_path / "fifo")
    with pytest.raises(ConfigError, match="set GATEWAY_STATE_KEYS instead"):
        keys.from_file(path)


_RACE = """
import sys
from pathlib import Path
from roundgate.tokens import keys
print("ready", flush=True)
sys.stdin.readline()
for n in range(50):
    print(keys.from_file(Path(sys.argv[1]) / str(n) / "gateway.key")[0].id)
"""


def test_processes_that_race_to_make_the_file_all_get_one_key(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _RACE, str(tmp_path)]
    root = Path(__file__).parents[3]
    running = [
        subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) for _ in range(4)
    ]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    got = {one.communicate(timeout=60)[0] for one in running}
    assert len(got) == 1, "every process has the same 50 keys"
    assert len(set(got.pop().split())) == 50
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"gateway.key"}, (
        "no drafts are left"
    )


def test_a_function_without_shared_keys_does_not_start_and_says_what_to_do(tmp_path: Path) -> None:
    using = from_environment(
        {
            "AWS_LAMBDA_FUNCTION_NAME": "mcp",
            "GATEWAY_ALLOW_ANONYMOUS": "true",
            "GATEWAY_STORE": f"sqlite:///{tmp_path}/x/db",
        }
    )
    with pytest.raises(ConfigError) as caught:
        build_app(config_file(add), using)
    (problem,) = caught.value.problems
    assert problem.path == "GATEWAY_STATE_KEYS"
    assert "roundgate keys new" in problem.remedy
    assert list(tmp_path.iterdir()) == []


# Keys that are read when they are needed


def test_nothing_is_read_before_a_key_is_needed() -> None:
    asked: list[str] = []

    def load() -> list[Key]:
        asked.append("load")
        return keys.parse(GOOD, "test")

    ring = KeyRing(keys.Refreshed(load, FixedClock()))
    assert asked == []
    assert ring.open(ring.seal(b"state", LOCAL), LOCAL) == b"state"
    assert asked == ["load"]


def test_a_rotation_is_noticed_after_a_while_and_not_asked_for_with_every_round() -> None:
    clock, kept = FixedClock(), [GOOD]
    ring = KeyRing(keys.Refreshed(lambda: keys.parse(",".join(kept), "test"), clock))
    before = ring.seal(b"state", LOCAL)
    kept.insert(0, keys.new_key())
    assert ring.seal(b"state", LOCAL).split(".")[1] == before.split(".")[1]
    clock.skip(keys.REFRESH_MS / 1000 + 1)
    assert ring.seal(b"state", LOCAL).split(".")[1] != before.split(".")[1]
    assert ring.open(before, LOCAL) == b"state"


def test_while_they_cannot_be_read_again_those_from_before_serve() -> None:
    clock, works = FixedClock(), [True]

    def load() -> list[Key]:
        return keys.parse(GOOD if works[0] else "no key", "test")

    ring = KeyRing(keys.Refreshed(load, clock))
    before = ring.seal(b"state", LOCAL)
    works[0] = False
    clock.skip(keys.REFRESH_MS / 1000 + 1)
    assert ring.open(before, LOCAL) == b"state"


def test_keys_that_were_never_read_are_a_503_that_tells_nothing() -> None:
    ring = KeyRing(keys.Refreshed(lambda: keys.parse(SECRET, "test"), FixedClock()))
    with pytest.raises(Unavailable, match="cannot be read just now") as caught:
        ring.seal(b"state", LOCAL)
    assert SECRET not in str(caught.value)


def test_a_key_may_come_without_its_padding() -> None:
    assert keys.parse(GOOD.rstrip("="), "test") == keys.parse(GOOD, "test")


def test_a_server_reads_its_keys_again_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "REFRESH_MS", 10)
    rings = iter([[Key(b"b" * 32)], [Key(b"c" * 32)]])
    both_read = threading.Event()

    def load() -> Sequence[Key]:
        ring = next(rings, None)
        if ring is None:
            both_read.set()
            raise ConfigError([])
        return ring

    ring = KeyRing(keys.Refreshed(load, FixedClock(), [Key(b"a" * 32)]))
    assert both_read.wait(60)
    assert ring.ids() == [Key(b"c" * 32).id]
