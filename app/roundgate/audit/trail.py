"""The audit log of one process: a chain of records, its checkpoints, and its failures.

A record reaches the kernel before the event continues: `called` before the handler runs, `ended`
before the answer leaves. So the death of the process loses no record of an earlier event.

    called ──▶ handler ──▶ ended ──▶ answer
       │ cannot be written: the call is refused (`on_failure: refuse`)
                             │ cannot be written: kept in memory, written later; new calls are refused

With `durable`, `settled` waits for the disk before the answer leaves; calls that wait at the same time
share one flush.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

from roundgate.audit.digests import Digests
from roundgate.audit.records import FIRST, ChainCheckpoint, answer_facts
from roundgate.audit.sinks import MakeSink, Sink
from roundgate.auth import Principal
from roundgate.background import detached
from roundgate.clock import Clock, Timer, iso
from roundgate.errors import Unavailable
from roundgate.json import encode
from roundgate.observability.metrics import set_audit_unwritable
from roundgate.observability.tracing import CORRELATION, Correlation
from roundgate.settings import AuditConfig

MAX_WAITING: Final = 10_000
"""The maximum number of records that wait in memory while the log cannot be written. Further records
are only counted."""
RETRY_S: Final = 5.0
"""Seconds after which a log that could not be written is tried again without a call. The first time
is that of the checkpoint that was due."""
MAX_NAME: Final = 200
"""The maximum number of recorded characters of a name or URI, as in the log."""

_Record: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""The time, the event and the other members of a record."""

_EMPTY: Final = sha256()

log = logging.getLogger("roundgate.audit")


class Trail:
    """The audit log of one process.

    Args:
        make_sink: makes the destination of the chain.
        digests: makes the digests of arguments and answers.
        facts: further members of the first record.
    """

    def __init__(
        self,
        config: AuditConfig,
        make_sink: MakeSink,
        digests: Digests,
        clock: Clock,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.is_durable = config.durable
        self.digest = digests.of
        self._refuses = config.on_failure == "refuse"
        self._checkpoint_s = config.checkpoint_s
        self._make_sink = make_sink
        self._key_id = digests.key_id
        self._clock = clock
        self._facts = facts or {}
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._chain = ""
        self._head = FIRST
        self._records = 0
        self._now_ms, self._now = 0, ""
        """The time of the last record, in milliseconds since the epoch and as text."""
        self._waiting: deque[_Record] = deque()
        self._lost = 0
        self._marked = 0
        self._timer: Timer | None = None
        self._synced = 0
        self._syncing: asyncio.Future[None] | None = None
        self.trouble: str | None = None
        """The reason why the log cannot be written now, or `None`."""

    @property
    def refuses(self) -> bool:
        """Return whether events that must have a record are refused now."""
        return self._refuses and self.trouble is not None

    # events of a call

    def called(
        self,
        ids: Correlation,
        principal: Principal,
        round_: int,
        *,
        method: str,
        name: str,
        backend: str,
        view: str,
        arguments: Any,
        answers: Mapping[str, Any],
    ) -> None:
        """Record that a round of a call begins.

        Raises:
            Unavailable: the record cannot be written, and such calls are refused.
        """
        facts: dict[str, Any] = {
            "call": ids.call_id,
            "round": round_,
            "who": who(principal),
            "method": method,
            "name": name[:MAX_NAME],
            "backend": backend,
            "view": view,
            "arguments": self.digest(arguments),
        }
        if ids.through is not None:
            facts["through"] = ids.through
        if answers:
            facts["answers"] = answer_facts(answers, self.digest)
        self.record("called", facts, must=True)
        ids.record_request = self._requested

    def asked(self, questions: Mapping[str, Any], ids: Mapping[str, Any]) -> None:
        """Record the questions that a call or task asks, each by its digest."""
        if questions:
            digests = {key: self.digest(question) for key, question in questions.items()}
            self.record("asked", {**ids, "questions": digests})

    def answered(self, principal: Principal, task: str, answers: Mapping[str, Any]) -> None:
        """Record a caller's answers to a task, before the task gets them.

        Raises:
            Unavailable: the record cannot be written, and such calls are refused.
        """
        facts = {"task": task, "who": who(principal)}
        self.record("answered", {**facts, "answers": answer_facts(answers, self.digest)}, must=True)
        self._record_requests(task)

    def decided(self, principal: Principal, is_approved: bool, **ids: str | None) -> None:
        """Record that a caller approved or declined a call. `ids` identifies the call if it is not the
        one being served."""
        known = {name: value for name, value in ids.items() if value is not None}
        self.record(
            "approved" if is_approved else "declined",
            {**(known or _ids_here()), "who": who(principal)},
        )

    def cancelled(self, principal: Principal, task: str) -> None:
        """Record that a caller cancels a task.

        Raises:
            Unavailable: the record cannot be written, and such calls are refused.
        """
        self.record("cancel", {"task": task, "who": who(principal)}, must=True)
        self._record_requests(task)

    def handed_over(self, task_id: str, backend: str) -> None:
        """Record that the call being served continues as a task of a service."""
        task = {"task": self.name_of_service_task(task_id), "backend": backend}
        self.record("task_created", {**_ids_here(), **task})

    def turn(self, principal: Principal, attempt: int) -> None:
        """Record that a worker begins a turn of the task being processed."""
        self.record("turn", {**_ids_here(), "who": who(principal), "attempt": attempt})
        if (ids := CORRELATION.get()) is not None:
            ids.record_request = self._requested

    def reloaded(self, cause: str, path: Path, changed: Sequence[str]) -> None:
        """Record a change of the protection, and the content of gateway.yaml by its digest."""
        facts = {"cause": cause, "config": self.digest(config_text(path))}
        self.record("policy", {**facts, "changed": list(changed)})

    def operator(self, action: str, principal: Principal | None = None, **facts: Any) -> None:
        """Record an act of an operator. Without a principal, the operator is the user that runs this
        process.

        Raises:
            Unavailable: the record cannot be written, and such calls are refused.
        """
        operator = {"user": _user()} if principal is None else who(principal)
        self.record("operator", {"action": action, **facts, "who": operator}, must=True)

    def _record_requests(self, task: str) -> None:
        """Record the requests to back ends that the request being served makes for a task."""
        if (ids := CORRELATION.get()) is not None:
            ids.record_request = partial(self._requested, task=task)

    def _requested(self, facts: Mapping[str, str], sent: Any, task: str | None = None) -> None:
        ids = _ids_here() if task is None else {"task": task}
        self.record("requested", {**ids, **facts, "sent": self.digest(sent)})

    def name_of_service_task(self, task_id: str) -> str:
        """Return the name of a service's task in records. The id is a token, so the name has its
        digest."""
        return f"service.{self.digest(task_id)}"

    # writing

    def record(self, event: str, facts: Mapping[str, Any], *, must: bool = False) -> None:
        """Write a record. If that fails, keep it and write it later.

        Args:
            event: the event in a word.
            facts: the other members of the record.
            must: whether the event must not happen without its record.

        Raises:
            Unavailable: the record of an event that must have one cannot be written, and
                `audit.on_failure` is `refuse`. The record is not kept.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            if now_ms != self._now_ms:  # most calls begin and end in the same millisecond
                self._now_ms, self._now = now_ms, iso(now_ms)
            at = self._now
            try:
                if self._sink is None or self.trouble is not None:
                    self._resume()
                self._write(at, event, facts)
            except OSError as error:
                self._failed(error)
                if must and self._refuses:
                    raise Unavailable(
                        "The gateway cannot write its audit log and serves no calls until it can; send the "
                        "request again later"
                    ) from None
                self._keep((at, event, facts))

    def check(self) -> None:
        """Do nothing if records can be written, as far as this process knows.

        Raises:
            Unavailable: as for an event that must have a record.
        """
        if self.refuses:
            self.record("checked", {}, must=True)

    def open(self) -> None:
        """Write the first record, so that an unwritable log is noticed when the process starts."""
        with self._lock:
            try:
                if self._sink is None:
                    self._resume()
            except OSError as error:
                self._failed(error)

    async def settled(self) -> None:
        """With `audit.durable`, return once all records written so far are on the disk, or an attempt
        has failed."""
        if not self.is_durable:
            return
        wanted = self._records
        while self._synced < wanted and self.trouble is None:
            if self._syncing is None or self._syncing.done():
                self._syncing = detached(asyncio.create_task, asyncio.to_thread(self._sync))
            await asyncio.shield(self._syncing)

    async def aclose(self) -> None:
        """End the chain: write the records that wait, the last record, and the last checkpoint."""
        with self._lock:
            try:
                if self.trouble is not None:
                    self._resume()
                if self._sink is not None:
                    self._write(iso(self._clock.now_ms()), "stopped", {})
                    self._mark()
                    self._sink.close()
            except OSError as error:
                self._failed(error)
            if lost := self._lost + len(self._waiting):
                log.error("records of the audit log are lost", extra={"fields": {"records": lost}})
            if self._timer is not None:
                self._timer.cancel()
            self._sink, self._timer = None, None

    def _resume(self) -> None:
        """Begin the chain, or continue after a failure with the records that wait."""
        if self._sink is None:
            now = iso(self._clock.now_ms())
            compact = now[:19].replace("-", "").replace(":", "")
            self._chain = f"{compact}Z-{self._clock.new_id()[:8]}"
            self._sink = self._make_sink(self._chain)
            self._head, self._records, self._synced, self._marked = FIRST, 0, 0, 0
        if self._records == 0:
            started = {
                "host": os.uname().nodename,
                "pid": os.getpid(),
                "key": self._key_id,
                **self._facts,
            }
            self._write(iso(self._clock.now_ms()), "started", started)
        while self._waiting:
            self._write(*self._waiting[0])
            self._waiting.popleft()
        if self.trouble is not None:
            self._write(iso(self._clock.now_ms()), "resumed", {"lost": self._lost})
            log.warning("the audit log is written again", extra={"fields": {"lost": self._lost}})
            self._lost, self.trouble = 0, None
            set_audit_unwritable(False)

    def _write(self, at: str, event: str, facts: Mapping[str, Any]) -> None:
        assert self._sink is not None
        number = self._records
        line = encode(
            {
                "chain": self._chain,
                "n": number,
                "prev": self._head,
                "at": at,
                "event": event,
                **facts,
            }
        )
        self._sink.write(line + b"\n")
        hashed = _EMPTY.copy()  # in half the time of `sha256(line)`
        hashed.update(line)
        self._head = hashed.hexdigest()
        self._records = number + 1
        if self._timer is None:
            self._set_timer(self._checkpoint_s)

    def _set_timer(self, seconds: float) -> None:
        with suppress(RuntimeError):  # no event loop runs here; the next record sets the timer
            self._timer = detached(self._clock.call_later, seconds, self._checkpoint)

    def _failed(self, error: OSError) -> None:
        if self.trouble is None:
            effect = "calls are refused" if self._refuses else "calls continue"
            fields = {"error": str(error), "effect": effect}
            log.error("the audit log cannot be written", extra={"fields": fields})
            set_audit_unwritable(True)
        self.trouble = f"the audit log cannot be written: {error.strerror or error}"
        if self._timer is None:
            self._set_timer(RETRY_S)

    def _keep(self, record: _Record) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(record)
        else:
            self._lost += 1

    def _checkpoint(self) -> None:
        with self._lock:
            self._timer = None
            try:
                if self.trouble is not None:
                    self._resume()
                self._mark()
            except OSError as error:
                self._failed(error)

    def _mark(self) -> None:
        if self._sink is None or self._records == self._marked:
            return
        checkpoint = ChainCheckpoint(self._chain, self._records, self._head).facts()
        log.info("audit checkpoint", extra={"fields": checkpoint})
        self._sink.mark(encode({**checkpoint, "at": iso(self._clock.now_ms())}) + b"\n")
        self._marked = self._records

    def _sync(self) -> None:
        try:
            with self._lock:
                flush = None if self._sink is None else self._sink.flusher()
                records = self._records
            if flush is not None:
                flush()
            self._synced = records
        except OSError as error:
            with self._lock:
                self._failed(error)


def who(principal: Principal) -> dict[str, str]:
    """Return a caller as members of a record."""
    return {
        "issuer": principal.issuer,
        "subject": principal.subject,
        "client": principal.client_id,
    }


def config_text(path: Path) -> str:
    """Return the text of a file for its digest; empty if there is no such file, as in a test."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _user() -> str:
    """Return the name of the user that runs this process, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _ids_here() -> dict[str, Any]:
    ids = CORRELATION.get()
    return {} if ids is None else ids.members()
