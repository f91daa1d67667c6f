"""What a gateway and a worker begin with: configuration, back ends, catalog,
stores. Knows no web framework.

`roundgate.main` builds the gateway around it; a worker process, or the worker function on
AWS Lambda, needs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from roundgate import aws, config
from roundgate import observability as logs
from roundgate.backends import KeptTexts, Serving
from roundgate.backends.python.modules import Modules
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ConfigError, Problem
from roundgate.methods import Changes, Hub
from roundgate.observability import metrics, tracing
from roundgate.runtime import loading
from roundgate.settings import Settings
from roundgate.settings import process as settings
from roundgate.storage import OnceStore, SessionStore, TaskQueue, TaskStore
from roundgate.tasks.stored import StoredTasks

if TYPE_CHECKING:  # who works on tasks is imported where there are tools with tasks
    from roundgate.tasks.lease import ClockTrust
    from roundgate.tasks.pool import Pool
    from roundgate.tasks.sweep import Sweep
    from roundgate.tasks.watchdog import Watchdog
    from roundgate.tasks.worker import Worker

LETTING_GO_PART: Final = 0.6
"""Of what is left of a lease when the event loop has stood still for too long, how
much a watchdog may take."""


Prepares: TypeAlias = Sequence[Callable[[], None]]
"""What is called to make clients of AWS before the first call needs them."""


@dataclass(frozen=True, slots=True)
class Stores:
    """What processes that belong together share."""

    once: OnceStore
    tasks: StoredTasks
    queue: TaskQueue
    sessions: SessionStore
    prepares: Prepares = ()
    again: Callable[[], StoredTasks] | None = None
    """Makes another object on the same tasks, for another event loop."""
    clock_skew_s: float = 5.0
    """By how much the clocks of those that share them may differ, unless the
    configuration knows better."""
    trouble: Callable[[], str | None] = lambda: None
    """Returns why the store cannot be used, if known without asking it."""
    id: Callable[[], str | None] = lambda: None
    """The id shared by the processes that use the same file; `None` before it is opened, and for
    other stores."""

    def prepare(self) -> None:
        """Make the clients of AWS before the first call needs them. No connection is opened.

        Raises:
            ConfigError: no region is set.
        """
        for prepare in self.prepares:
            prepare()


@dataclass(frozen=True, slots=True)
class Core:
    """What a gateway and a worker have in common."""

    serving: Serving
    modules: Modules
    """The users' modules behind it."""
    changes: Changes
    """What is told on the streams of all replicas."""
    stores: Stores
    shows_errors: bool = False
    """Whether callers see what unexpected exceptions say: in development."""

    def trust(self, config: GatewayConfig, clock: Clock) -> ClockTrust:
        """Return the judgement of this process's clock."""
        from roundgate.tasks.lease import ClockTrust

        skew_ms = config.tasks.skew_ms(self.stores.clock_skew_s)
        return ClockTrust(clock, int(config.tasks.lease_s * 1000), skew_ms)

    def worker(
        self, config: GatewayConfig, clock: Clock, trust: ClockTrust | None = None
    ) -> Worker:
        """Takes turns at tasks."""
        from roundgate.tasks.worker import Worker

        stores, publish = self.stores, self.changes.publish
        return Worker(
            self.serving,
            stores.tasks,
            stores.queue,
            clock,
            config.tasks,
            publish,
            skew_s=stores.clock_skew_s,
            tracing=tracing.set_up(),
            metrics=metrics.set_up(),
            texts=lambda view: self.texts(config, clock, view),
            shows_errors=self.shows_errors,
            trust=trust,
        )

    def sweep(self, config: GatewayConfig, clock: Clock, trust: ClockTrust | None = None) -> Sweep:
        """Finds late tasks."""
        from roundgate.tasks.sweep import Sweep

        stores, skew_s = self.stores, self.stores.clock_skew_s
        return Sweep(stores.tasks, stores.queue, clock, config.tasks, skew_s=skew_s, trust=trust)

    def texts(self, config: GatewayConfig, clock: Clock, view: str) -> KeptTexts:
        """What keeps the rest of results that are too long, for callers of a view."""
        return KeptTexts(
            self.stores.sessions,
            clock,
            config.limits,
            view,
            checks_scopes=config.auth != "none",
            task_s=config.tasks.ttl_s,
        )

    def pool(
        self, config: GatewayConfig, clock: Clock, *, stop_grace_s: float, owns_process: bool
    ) -> Pool:
        """Workers and the sweep, for a process that runs on; one that is ours begins others for
        suspects, and is ended by a watchdog if a handler blocks it."""
        from roundgate.tasks.isolation import Children, child_command
        from roundgate.tasks.pool import Pool

        stores, tasks = self.stores, config.tasks
        trust = self.trust(config, clock)
        worker = self.worker(config, clock, trust)
        return Pool(
            worker,
            self.sweep(config, clock, trust),
            stores.queue,
            tasks,
            metrics.set_up(),
            stop_grace_s=stop_grace_s,
            share=None if config.auth == "none" else tasks.share,
            children=Children(child_command()) if owns_process else None,
            watchdog=self.watchdog(worker, config, clock) if owns_process else None,
        )

    def watchdog(self, worker: Worker, config: GatewayConfig, clock: Clock) -> Watchdog | None:
        """What ends a process whose event loop stands still."""
        if self.stores.again is None:
            return None
        from roundgate.tasks.pool import watchdog_of

        limit_s = config.tasks.stall_part * config.tasks.lease_s
        bound_s = (config.tasks.lease_s - limit_s) * LETTING_GO_PART
        return watchdog_of(worker, self.stores.again, clock, limit_s=limit_s, bound_s=bound_s)

    async def aclose(self) -> None:
        """Let go of all connections."""
        await self.serving.aclose()
        await self.changes.aclose()
        await self.stores.queue.aclose()
        await self.stores.sessions.aclose()
        await self.stores.tasks.aclose()
        await self.stores.once.aclose()


def read_configuration(environ: Mapping[str, str]) -> tuple[Settings, ConfigFile]:
    """What an environment says, and the file that it names; from here on the log is as it says too.

    Raises:
        ConfigError: every problem in the environment, or every one in the file.
    """
    using = settings.from_environment(environ)
    logs.configure(using.log_level, using.log_format, alone=using.on_lambda)
    return using, config.load(using.config)


def build_core(
    file: ConfigFile, using: Settings, clock: Clock, stores: Stores | None = None
) -> Core:
    """The catalog and the stores of a configuration; what they need is made now, unless
    somebody waits for an answer.

    Raises:
        ConfigError: see `build_app`.
    """
    shows = shows_errors(file, using)
    modules = Modules()
    names = () if file.config.limits.strict else [one.name for one in file.config.backends]
    snapshot = loading.load(file, modules, may_be_missing=names, is_cold=using.on_lambda)
    serving = Serving(snapshot)
    loading.tell_missing(serving.catalog)
    metrics.set_up().missing(len(serving.catalog.missing))
    stores = stores or make_stores(using, clock, file.config.tasks.shards)
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
    return Core(serving, modules, changes, stores, shows)


def is_private(file: ConfigFile, using: Settings) -> bool:
    """Whether nothing says that anybody but the developer calls: no authentication, no
    public URL, no Lambda."""
    return (
        file.config.auth == "none"
        and using.public_url is None
        and not using.allow_anonymous
        and not using.on_lambda
    )


def shows_errors(file: ConfigFile, using: Settings) -> bool:
    """Whether callers see what unexpected exceptions say.

    Raises:
        ConfigError: it is asked for where others may call.
    """
    if using.show_errors == "on" and not is_private(file, using):
        message = "is on, and others than the developer may call: exceptions can hold secrets"
        remedy = (
            "unset it here; the log has each exception under the reference that its caller gets"
        )
        raise ConfigError([Problem("environment", "GATEWAY_SHOW_ERRORS", message, remedy)])
    return using.show_errors == "on"


def make_stores(using: Settings, clock: Clock, shards: int = 8) -> Stores:
    """The stores that the settings name. Nothing is opened yet, and what is
    not named is not imported.

    Args:
        using: the environment.
        clock: of the stores.
        shards: parts of DynamoDB's index of open tasks, `tasks.shards` in gateway.yaml.

    Raises:
        ConfigError: they do not go together.
    """
    _check_queue(using)
    table, url = using.dynamodb_table, using.sqs_url
    kept = _in_sqlite(using, clock) if table is None else _in_dynamodb(table, clock, shards)
    queue, prepares = kept.queue or _local_queue(using, clock) if url is None else _at_sqs(url)
    return Stores(
        kept.once,
        StoredTasks(kept.tasks),
        queue,
        kept.sessions,
        [*kept.prepares, *prepares],
        again=lambda: make_stores(using, clock, shards).tasks,
        clock_skew_s=_skew_s(using),
        trouble=kept.trouble,
        id=kept.id,
    )


def _check_queue(using: Settings) -> None:
    if using.on_lambda and using.sqs_url is None and using.dynamodb_table is not None:
        remedy = "set it to sqs:// and the URL of the queue"
        message = "is local, which the functions of AWS Lambda do not share"
        raise ConfigError([Problem("environment", "GATEWAY_QUEUE", message, remedy)])


@dataclass(frozen=True, slots=True)
class _Kept:
    """What one database keeps."""

    once: OnceStore
    tasks: TaskStore
    sessions: SessionStore
    prepares: Prepares = ()
    queue: tuple[TaskQueue, Prepares] | None = None
    """A queue in the same database, whose writes go to the disk with those of the tasks."""
    trouble: Callable[[], str | None] = lambda: None
    id: Callable[[], str | None] = lambda: None


def _in_dynamodb(name: str, clock: Clock, shards: int) -> _Kept:
    from roundgate.storage.dynamodb import (
        CONFIG,
        DynamoDbOnce,
        DynamoDbSessions,
        DynamoDbTasks,
        Table,
    )

    table = Table(name, lambda: aws.client("dynamodb", **CONFIG), clock)
    return _Kept(
        DynamoDbOnce(table),
        DynamoDbTasks(table, shards),
        DynamoDbSessions(table, clock),
        [table.prepare],
    )


def _in_sqlite(using: Settings, clock: Clock) -> _Kept:
    from roundgate.storage.sqlite import (
        Database,
        SqliteOnce,
        SqliteQueue,
        SqliteSessions,
        SqliteTasks,
        other_version,
    )

    if reason := other_version(using.sqlite_path):
        raise ConfigError([Problem("environment", "GATEWAY_STORE", reason, "name another file")])
    database = Database(using.sqlite_path)
    return _Kept(
        SqliteOnce(database, clock),
        SqliteTasks(database),
        SqliteSessions(database, clock),
        queue=(SqliteQueue(database, clock), ()),
        trouble=database.trouble,
        id=lambda: database.id,
    )


def _at_sqs(url: str) -> tuple[TaskQueue, Prepares]:
    from roundgate.storage import sqs

    queue = sqs.SqsQueue(
        url, lambda: aws.client("sqs", **sqs.CONFIG), lambda: aws.client("sqs", **sqs.RECEIVING)
    )
    return queue, [queue.prepare]


def _local_queue(using: Settings, clock: Clock) -> tuple[TaskQueue, Prepares]:
    from roundgate.storage.sqlite import Database, SqliteQueue

    return SqliteQueue(Database(using.sqlite_path), clock), ()


def _skew_s(using: Settings) -> float:
    """Processes on one file have one clock, which is set now and then;
    machines have each their own."""
    return 5.0 if using.dynamodb_table is None else 60.0
