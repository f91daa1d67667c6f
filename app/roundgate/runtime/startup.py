"""The start of a gateway or a worker: configuration, back ends, catalog, stores and keys.

`roundgate.main` builds the gateway from these parts; a worker needs no web framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate import config
from roundgate import observability as logs
from roundgate.auth import Principal, task_owner
from roundgate.backends import KeptTexts, Serving, Snapshot
from roundgate.backends.modules import Modules
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ConfigError, Problem, ToolError
from roundgate.methods import Changes, Hub
from roundgate.observability import tracing
from roundgate.observability.metrics import Metrics, timed
from roundgate.observability.terminal import encodable
from roundgate.runtime import checks, loading
from roundgate.settings import Settings
from roundgate.settings import process as settings
from roundgate.storage import Accounts, OnceStore, SessionStore, TaskQueue
from roundgate.storage.accounts import CountedRows
from roundgate.storage.ports import Opening, Ports, StoreFacts
from roundgate.tasks.stored import StoredTasks
from roundgate.tokens import EventTokens, Key, KeyRing, keys

if TYPE_CHECKING:  # imported at run time only by processes that need them
    from roundgate.audit import Trail
    from roundgate.storage.sqs import SqsQueue
    from roundgate.tasks.external import EventSource
    from roundgate.tasks.hidden import HiddenTasks
    from roundgate.tasks.lease import ClockTrust
    from roundgate.tasks.pool import Pool
    from roundgate.tasks.sweep import Sweep
    from roundgate.tasks.watchdog import Watchdog
    from roundgate.tasks.worker import Worker

STALL_PART: Final = 0.6
"""The part of a lease for which a handler may block the event loop before the watchdog ends the
process."""
LETTING_GO_PART: Final = 0.6
"""The part of the remaining lease that the watchdog may use to release the tasks."""


class Stores(Struct, frozen=True):
    """The stores that cooperating processes share."""

    tasks: StoredTasks
    queue: TaskQueue
    sessions: SessionStore
    """The session rows of the gateway itself, without an owner; `Core.rows_of` returns the rows of
    callers."""
    again: Callable[[], StoredTasks] | None = None
    """Makes another object on the same tasks, for another event loop."""
    metrics: Metrics = field(default_factory=Metrics)
    """Counts the operations of this process on tasks."""
    facts: StoreFacts = StoreFacts()
    accounts: Accounts | None = None
    """Counts the stored bytes of each caller; `None` without a limit."""

    @property
    def once(self) -> OnceStore:
        return OnceStore(self.sessions)

    def prepare(self) -> None:
        """Make the AWS clients now, without connecting.

        Raises:
            ConfigError: no region is set.
        """
        for prepare in self.facts.prepares:
            prepare()


class Loaded(Struct, frozen=True):
    """The parts of a configuration that are independent of the stores. The instances of a test share
    them."""

    snapshot: Snapshot
    modules: Modules
    trail: Trail | None
    """The audit log, if there is one."""


class Core(Struct, frozen=True):
    """The common parts of a gateway and a worker."""

    serving: Serving
    modules: Modules
    changes: Changes
    stores: Stores
    event_tokens: Callable[[], EventTokens]
    """Returns the sealer of the tokens of external events. It reads the keys at the first event."""
    accounts: Accounts
    """Counts the stored bytes of each caller."""
    shows_errors: bool = False
    """Whether callers see the messages of unexpected exceptions."""
    public_url: str | None = None
    """The URL under which clients and services reach the gateway."""
    has_shared_keys: bool = True
    """Whether every process on these stores has the same state keys."""
    trail: Trail | None = None
    """The audit log, if there is one."""

    def rows_of(self, view: str) -> Callable[[Principal], CountedRows]:
        """Return a function that returns the counted rows of a caller of a view."""
        return lambda principal: self.accounts.rows(task_owner(principal, view))

    def hidden(self, config: GatewayConfig, clock: Clock) -> Callable[[str], HiddenTasks]:
        """Return a function that returns the hidden tasks of a view."""

        @cache
        def hidden_of(view: str) -> HiddenTasks:
            from roundgate.storage.patience import RowPatience
            from roundgate.tasks.hidden import HiddenTasks

            # an answer is useless after the state has expired
            wait_s = min(config.sessions.answer_timeout_s, config.state.lifetime_s)
            wait_ms = int(wait_s * 1000)
            return HiddenTasks(
                self.stores.tasks,
                clock,
                config.tasks,
                RowPatience(clock),
                wait_ms=wait_ms,
                repeatable_ms=int(config.state.lifetime_s * 1000),
                view=view,
            )

        return hidden_of

    def trust(self, config: GatewayConfig, clock: Clock) -> ClockTrust:
        """Return the `ClockTrust` that decides whether this process may act by its clock."""
        from roundgate.tasks.lease import ClockTrust

        skew_ms = config.tasks.skew_ms(self.stores.facts.clock_skew_s)
        return ClockTrust(clock, int(config.tasks.lease_s * 1000), skew_ms)

    def worker(
        self, config: GatewayConfig, clock: Clock, trust: ClockTrust | None = None
    ) -> Worker:
        from roundgate.tasks.turn import Means
        from roundgate.tasks.worker import Worker

        stores = self.stores
        means = Means(
            self.serving,
            stores.tasks,
            clock,
            config.tasks,
            self.changes.publish,
            skew_s=stores.facts.clock_skew_s,
            tracing=tracing.set_up(),
            metrics=stores.metrics,
            texts=cache(partial(self.texts, config, clock)),
            hidden=self.hidden(config, clock),
            shows_errors=self.shows_errors,
            clock_trust=trust,
            external=self.event_source(config),
            trail=self.trail,
        )
        return Worker(means)

    def event_source(self, config: GatewayConfig) -> EventSource:
        from roundgate.tasks.external import EventSource

        tokens = self.event_tokens if self.has_shared_keys else _no_shared_keys
        return EventSource(tokens, self.public_url, config.tasks)

    def sweep(self, config: GatewayConfig, clock: Clock, trust: ClockTrust | None = None) -> Sweep:
        from roundgate.tasks.sweep import Sweep

        stores, skew_s = self.stores, self.stores.facts.clock_skew_s
        shared = stores.tasks, stores.queue, stores.sessions
        return Sweep(*shared, clock, config.tasks, skew_s=skew_s, trust=trust)

    def texts(self, config: GatewayConfig, clock: Clock, view: str) -> KeptTexts:
        return KeptTexts(
            self.rows_of(view),
            clock,
            config.limits,
            view,
            checks_scopes=config.auth != "none",
            task_s=config.tasks.ttl_s,
        )

    def pool(
        self, config: GatewayConfig, clock: Clock, *, stop_grace_s: float, owns_process: bool
    ) -> Pool:
        """Return the workers and the sweep of a long-running process. If the process is the
        gateway's own, suspects run in child processes, and a watchdog ends a process that a handler
        blocks."""
        from roundgate.tasks.pool import Children, Pool, child_command

        stores, tasks = self.stores, config.tasks
        trust = self.trust(config, clock)
        worker = self.worker(config, clock, trust)
        return Pool(
            worker,
            self.sweep(config, clock, trust),
            stores.queue,
            tasks,
            stores.metrics,
            stop_grace_s=stop_grace_s,
            share=None if config.auth == "none" else tasks.share,
            children=Children(child_command(), self.stores.metrics) if owns_process else None,
            watchdog=self.watchdog(worker, config, clock) if owns_process else None,
        )

    def watchdog(self, worker: Worker, config: GatewayConfig, clock: Clock) -> Watchdog | None:
        """Return a watchdog, or `None` if the stores cannot make a second task store."""
        if self.stores.again is None:
            return None
        from roundgate.tasks.pool import make_watchdog

        limit_s = STALL_PART * config.tasks.lease_s
        bound_s = (config.tasks.lease_s - limit_s) * LETTING_GO_PART
        return make_watchdog(
            worker, self.stores.again, clock, self.trail, limit_s=limit_s, bound_s=bound_s
        )

    async def aclose(self) -> None:
        await self.serving.aclose()
        await self.changes.aclose()
        await self.stores.queue.aclose()
        await self.stores.sessions.aclose()
        await self.stores.tasks.aclose()
        if self.trail is not None:
            await self.trail.aclose()


@contextmanager
def reported_in_ascii() -> Iterator[None]:
    """Make the text of a ConfigError ASCII. AWS Lambda's runtime sends the text of an exception in
    latin-1, and fails without a report if it cannot."""
    try:
        yield
    except ConfigError as error:
        error.args = (encodable(str(error)),)
        raise error.with_traceback(None) from None


def read_configuration(environ: Mapping[str, str]) -> tuple[Settings, ConfigFile]:
    """Return the settings of the environment and their configuration file, and configure the log.

    Raises:
        ConfigError: the environment or the file has problems; the error lists all of them.
    """
    using = settings.from_environment(environ)
    logs.configure(using.log_level, using.log_format, alone=using.on_lambda)
    return using, config.load(using.config)


def load(
    file: ConfigFile, using: Settings, trail: Trail | None, rows: SessionStore | None = None
) -> Loaded:
    """Load the configuration of a gateway or a worker, and log the back ends that are missing. `rows`
    is the store of shared limits.

    Raises:
        ConfigError: as for `loading.load`.
    """
    modules = Modules()
    names = () if file.config.limits.strict else [backend.name for backend in file.backends]
    snapshot = loading.load(file, modules, may_be_missing=names, is_cold=using.on_lambda, rows=rows)
    loading.tell_missing(snapshot.catalog, follows=not using.on_lambda)
    loading.tell_uncovered(snapshot.catalog)
    Metrics().missing(len(snapshot.catalog.missing))
    return Loaded(snapshot, modules, trail)


def build_core(
    file: ConfigFile,
    using: Settings,
    clock: Clock,
    stores: Stores | None = None,
    *,
    role: str = "gateway",
    loaded: Loaded | None = None,
    metrics: Metrics | None = None,
) -> Core:
    """Load the configuration, unless it is `loaded`, and make the stores. Also make the AWS clients,
    unless the process starts on demand for a waiting caller. `role` names the process in the audit
    log. `metrics` counts the operations on tasks.

    Raises:
        ConfigError: as for `build_app`.
    """
    if loaded is None:
        checks.require(checks.core_problems(file, using))
        trail = make_trail(file, using, clock, role)
    else:
        trail = loaded.trail
    most_stored = file.config.limits.max_stored_bytes
    shards = file.config.tasks.shards
    stores = stores or make_stores(using, clock, shards, most_stored, trail, metrics)
    loaded = loaded or load(file, using, trail, stores.sessions)
    serving = Serving(loaded.snapshot)
    accounts = stores.accounts or Accounts(stores.sessions, clock, most_stored)
    if not using.on_demand:
        stores.prepare()
    http = file.config.http
    changes = Changes(
        Hub(http.max_streams, http.max_streams_per_caller),
        stores.sessions,
        clock,
        every_s=file.config.tasks.poll_interval_ms / 1000,
        shares=using.streams,
    )
    tokens = cache(lambda: EventTokens(make_ring(file.config, using, clock)))
    return Core(
        serving,
        loaded.modules,
        changes,
        stores,
        event_tokens=tokens,
        accounts=accounts,
        shows_errors=using.show_errors == "on",
        public_url=using.public_url,
        has_shared_keys=using.sqs_url is None or using.names_state_keys,
        trail=trail,
    )


def make_trail(file: ConfigFile, using: Settings, clock: Clock, role: str) -> Trail | None:
    """Return the audit log, as `audit_log.make_trail` does, or `None` without the section `audit`."""
    if file.config.audit is None:
        return None
    from roundgate.runtime import audit_log

    return audit_log.make_trail(file, file.config.audit, using, clock, role)


def _no_shared_keys() -> NoReturn:
    raise ToolError(
        "An event cannot be opened: this worker has no state keys. Set GATEWAY_STATE_KEYS, "
        "GATEWAY_STATE_KEYS_SECRET or GATEWAY_STATE_KEYS_KMS to the value that the gateways have"
    )


def make_stores(
    using: Settings,
    clock: Clock,
    shards: int = 8,
    most_stored: int | None = None,
    trail: Trail | None = None,
    metrics: Metrics | None = None,
) -> Stores:
    """Return the stores that the settings name, without connecting them. Check the version of an
    existing SQLite file.

    Args:
        using: the settings.
        clock: the clock of the process.
        shards: the number of parts of DynamoDB's index of due tasks.
        most_stored: the maximum number of stored bytes of one caller; `None` for an operator's
            commands.
        trail: the audit log, if there is one.
        metrics: counts the operations on tasks; by default those of this process.

    Raises:
        ConfigError: the settings contradict each other, or this version cannot use the file.
    """
    _check_queue(using)
    queue = None if using.sqs_url is None else _at_sqs(using.sqs_url)
    kind = using.store_kind
    if problem := kind.missing():
        raise ConfigError([problem])
    opening = Opening(using.store, using.store_file, clock, using.store_connections, shards, queue)
    ports: Ports = import_module(kind.module).open_store(opening)
    sessions, task_queue = timed(ports.sessions, "sessions"), timed(ports.queue, "queue")
    accounts = None if most_stored is None else Accounts(sessions, clock, most_stored)
    metrics = metrics or Metrics(using.on_function, clock)
    tasks = StoredTasks(timed(ports.tasks, "tasks"), task_queue, metrics, accounts, trail)
    facts = ports.facts
    if queue is not None:
        facts = replace(facts, prepares=[*facts.prepares, queue.prepare])
    return Stores(
        tasks,
        task_queue,
        sessions,
        again=lambda: make_stores(using, clock, shards).tasks,
        metrics=metrics,
        facts=facts,
        accounts=accounts,
    )


def _check_queue(using: Settings) -> None:
    if using.on_lambda and using.sqs_url is None and not using.store_kind.is_file:
        remedy = "set it to sqs:// and the URL of the queue"
        message = "is local, which the functions of AWS Lambda do not share"
        raise ConfigError([Problem("environment", "GATEWAY_QUEUE", message, remedy)])


def _at_sqs(url: str) -> SqsQueue:
    from roundgate import aws
    from roundgate.storage import sqs

    return sqs.SqsQueue(
        url, lambda: aws.client("sqs", **sqs.CONFIG), lambda: aws.client("sqs", **sqs.RECEIVING)
    )


def make_ring(config: GatewayConfig, using: Settings, clock: Clock) -> KeyRing:
    """Return the key ring for everything that the gateway seals.

    Raises:
        ConfigError: no usable keys are configured.
    """
    return KeyRing(_state_keys(using, clock), config.state.audience)


def _state_keys(using: Settings, clock: Clock) -> Sequence[Key]:
    if using.state_keys is not None:
        return keys.parse(using.state_keys, using.state_keys_source)
    secret, encrypted = using.state_keys_secret, using.state_keys_kms
    if secret is None and encrypted is None:
        require_one_host(using)
        return keys.from_file(using.store_file.with_suffix(".key"))
    from roundgate import aws

    if secret is not None:

        def read() -> Sequence[Key]:
            return keys.from_secrets_manager(secret, aws.client)

        # on Lambda on demand, because a function outlives snapshots
        return keys.Refreshed(read, clock, () if using.on_lambda else read())

    def decrypt() -> Sequence[Key]:
        return keys.from_kms(str(encrypted), aws.client)

    return keys.Refreshed(decrypt, clock) if using.on_lambda else decrypt()


def require_one_host(using: Settings) -> None:
    """Check that a key file on this host can serve all replicas.

    Raises:
        ConfigError: replicas may run on several hosts.
    """
    if using.on_lambda or using.store_kind.needs_keys:
        remedy = (
            "make a key with `roundgate keys new` and set GATEWAY_STATE_KEYS, …_SECRET or "
            "…_KMS for every replica"
        )
        message = "is not set, and replicas need a shared key to open each other's sealed state"
        raise ConfigError([Problem("environment", "GATEWAY_STATE_KEYS", message, remedy)])
