"""The sections of gateway.yaml, each a frozen model. `roundgate schema` exports their
descriptions."""

from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr, model_validator

TaskMode: TypeAlias = Literal["forbidden", "optional", "required"]
"""Whether a tool's call becomes a task: never; if the client supports tasks; or always, refusing
other clients."""

WithoutTasks: TypeAlias = Literal["none", "wait", "tools"]
"""The substitute for clients that do not support tasks: none; a result after waiting; or a handle
and tools that accept it."""


Count: TypeAlias = Annotated[int, Field(ge=1)]
UpToAThousand: TypeAlias = Annotated[int, Field(ge=1, le=1_000)]
Size: TypeAlias = Annotated[int, Field(ge=1_024)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]
UpToADay: TypeAlias = Annotated[float, Field(gt=0, le=86_400)]


class Model(BaseModel):
    """The base of all models. Instances are frozen, and an unknown setting is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


class ServerConfig(Model):
    """The gateway's description of itself (schema: `Implementation`)."""

    name: str = Field(
        "roundgate", description="Name in serverInfo, for display and logs.", min_length=1
    )
    version: str = Field(
        "0.0.0", description="Version of your deployment in serverInfo.", min_length=1
    )
    title: str | None = Field(None, description="Name for people.")
    description: str | None = Field(None, description="Purpose of this server.")
    website_url: str | None = Field(None, description="URL for people.")
    instructions: str | None = Field(
        None, description="Guidance for models on how to use the tools; sent by server/discover."
    )


class HttpConfig(Model):
    """The HTTP server: endpoint, hosts, origins, limits and timeouts."""

    path: str = Field(
        "/mcp", description="Path of the MCP endpoint.", pattern=r"^/[A-Za-z0-9_./-]*[A-Za-z0-9_-]$"
    )
    allowed_hosts: list[str] | None = Field(
        None,
        description="Hosts to serve: names, names with port, *.suffixes, or *. Unset: loopback, GATEWAY_PUBLIC_URL's.",
    )
    allowed_origins: list[str] | None = Field(
        None,
        description="Origins to serve with CORS headers, or *. Unset: those on loopback and of GATEWAY_PUBLIC_URL.",
    )
    trusted_proxies: list[IPvAnyNetwork] = Field(
        [],
        description="Addresses or networks of proxies whose X-Forwarded-For and -Proto name the client; else ignored.",
    )
    max_body_bytes: Size = Field(
        4_000_000, description="Largest request body or answer to a batch; larger ones get 413."
    )
    keep_alive_s: Seconds = Field(
        15,
        description="Seconds between comments on a stream, and before the first of a silent call.",
    )
    max_streams: Count = Field(
        1000, description="Open subscriptions/listen streams in one process; more get 503."
    )
    max_streams_per_caller: Count = Field(100, description="Streams of one caller; more get 503.")
    max_json_nodes: int = Field(
        100_000, description="Values and keys in a request body; more get 413.", ge=1_000
    )
    max_pending_bytes: int = Field(
        64_000_000,
        description="Bodies over 8 KB that are served at once, plus 100 bytes for each value; more get 503.",
        ge=1_000_000,
    )
    max_unread_bytes: int = Field(
        64_000_000,
        description="Answers that wait for their readers; beyond it, the caller with most loses its oldest.",
        ge=1_000_000,
    )
    max_header_bytes: int = Field(
        65_536, description="Request line and headers; more get 431.", ge=4_096
    )
    max_headers: int = Field(100, description="Header fields of a request; more get 431.", ge=16)
    max_connections: Count = Field(
        1_000, description="Open connections of one process; more get 503."
    )
    max_connections_per_address: Count | None = Field(
        None,
        description="Connections that one address (IPv6: a /64) keeps when the limit is reached. Unset: an eighth.",
    )
    ready_needs_store: bool = Field(
        False, description="Whether /readyz fails while the store is unreachable."
    )
    idle_timeout_s: int = Field(
        75,
        description="Seconds for which an idle connection stays open; set it longer than the balancer in front.",
        ge=1,
        le=3_600,
    )
    head_timeout_s: Seconds = Field(
        10, description="Seconds within which a request's headers must arrive."
    )
    body_timeout_s: Seconds = Field(
        60, description="Seconds within which a request's body must arrive."
    )
    send_timeout_s: Seconds = Field(
        30, description="Seconds within which a client must accept 64 KB of an answer."
    )
    metrics: bool = Field(
        False, description="Serve GET /metrics for Prometheus to operators; extra `prometheus`."
    )
    max_events_per_s: Count = Field(
        100, description="Requests to /events per second in one process; more get 429."
    )
    docs: bool = Field(
        False,
        description="Serve FastAPI's pages /docs and /openapi.json of the other routes to operators.",
    )


Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Asymmetric algorithms only: with a shared secret, every verifier could also sign."""


class LimitsConfig(Model):
    """Limits on calls, threads, pages and long results."""

    call_timeout_s: UpToADay = Field(
        60, description="Seconds after which a call ends with an error."
    )
    threads: UpToAThousand = Field(
        40, description="Plain (not async) functions that one process runs concurrently."
    )
    strict: bool = Field(
        False,
        description="Whether a back end that cannot be served prevents the gateway from starting.",
    )
    page_size: int | None = Field(
        None,
        description="Entries per page. Unset: one page, because many clients read only the first.",
        ge=1,
        le=10_000,
    )
    kept_results_s: UpToADay = Field(
        900, description="Seconds for which the rest of a long result is kept."
    )
    max_kept_chars: int = Field(
        4_000_000, description="Characters of a long result that are kept.", ge=1_000, le=50_000_000
    )
    max_stored_bytes: int = Field(
        256_000_000,
        description="Bytes stored for one caller in a view: tasks, results, answers; each row is 1 KB more.",
        ge=100_000,
    )
    max_kept_results: int = Field(
        100,
        description="Long results kept at once for one caller in a view.",
        ge=1,
        le=10_000,
    )


class CallLimits(Model):
    """Limits on the calls of each caller (`rate`), or of all callers (`limits` of a back end). A limit
    that is not set does not apply."""

    calls_per_minute: int | None = Field(
        None, description="Calls that may be made in a minute.", ge=1, le=1_000_000
    )
    burst: int | None = Field(
        None,
        description="Calls that may be made at once after a pause. Unset: calls_per_minute.",
        ge=1,
        le=1_000_000,
    )
    concurrent: Count | None = Field(None, description="Calls that one process runs at once.")

    @model_validator(mode="after")
    def _burst_has_a_rate(self) -> Self:
        if self.burst is not None and self.calls_per_minute is None:
            raise ValueError("burst needs calls_per_minute")
        return self


class RateConfig(CallLimits):
    """Limits on the calls of each caller: issuer, subject and client; without auth, an address."""

    shared: bool = Field(
        False,
        description="Whether replicas count calls a minute together, in the store. Unset: each by itself.",
    )
    tools: dict[str, CallLimits] = Field(
        {},
        description="Further limits on calls of tools, by whole name; * stands for any text. The tools of a row share.",
    )
    scopes: dict[str, CallLimits] = Field(
        {},
        description="Limits of callers with a scope, in place of the general ones. The first row that applies counts.",
    )


class StateConfig(Model):
    """Settings of requestState, the sealed journal of a call that travels through the client
    between rounds."""

    lifetime_s: UpToADay = Field(900, description="Seconds within which the next round must begin.")
    max_bytes: int = Field(
        64_000, description="Bytes of state that one call may store.", ge=1024, le=1_000_000
    )
    audience: str = Field(
        "roundgate",
        description="Bound into every token; separates deployments with the same keys.",
        min_length=1,
    )
    max_rounds: Count = Field(
        25, description="Rounds after which a call ends with an error; clients often stop at 10."
    )


class SessionsConfig(Model):
    """Sessions of clients that use a protocol revision before 2026-07-28."""

    lifetime_s: float = Field(
        604_800, description="Seconds after which a session ends.", ge=60, le=31_536_000
    )
    answer_timeout_s: float = Field(
        300, description="Seconds within which a client must answer a question.", ge=1, le=86_400
    )
    continue_tool: str = Field(
        "continue_call",
        description="Name of the tool that continues a call whose answer was PENDING.",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
    )


ArgumentMode: TypeAlias = Literal["lenient", "strict"]
"""Whether usual slips in the arguments that models write are repaired or refused."""


class ArgumentsConfig(Model):
    """How arguments that models write are read. `override` sets the mode for one tool."""

    mode: ArgumentMode = Field(
        "lenient",
        description="lenient: repair usual slips where the schema leaves no doubt; strict: refuse them.",
    )
    ignored: list[str] = Field(
        ["toolCallId", "sessionId"],
        description="Names that clients add to arguments, left out unless a tool's schema names them.",
    )


class FallbackConfig(Model):
    """Substitutes for clients that do not support questions or tasks. `override` sets them for one
    tool."""

    ask_in_words: bool | None = Field(
        None,
        description="Whether clients without elicitation get a question as text; never an approval. "
        "Unset: for tools that are known to ask.",
    )
    without_tasks: WithoutTasks | None = Field(
        None,
        description="none: refuse the call; wait: wait for the result; tools: return a handle that tools accept. "
        "Unset: tools if a tool has to be a task, otherwise none.",
    )
    answer_tool: str = Field(
        "answer",
        description="Name of the tool that accepts answers to questions asked as text.",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
    )
    task_tool_prefix: str = Field(
        "task_",
        description="Prefix of status, result, answer and cancel, the tools that accept handles.",
        pattern=r"^[A-Za-z0-9_.-]{1,50}$",
    )


class TasksConfig(Model):
    """Calls that outlive their request (tasks extension)."""

    ttl_s: float = Field(
        86_400,
        description="Seconds for which a task is kept after its creation, or after the end of its last wait.",
        ge=1,
        le=2_592_000,
    )
    max_ttl_s: float = Field(
        2_592_000,
        description="Seconds from its creation for which waits and restarts can extend a task's life.",
        ge=1,
        le=31_536_000,
    )
    poll_interval_ms: int = Field(
        1_000,
        description="Milliseconds between polls of clients, and between reads of watched tasks.",
        ge=100,
    )
    concurrency: UpToAThousand = Field(16, description="Tasks that one process runs concurrently.")
    lease_s: float = Field(
        30,
        description="Seconds after which another worker claims the task of a dead worker.",
        ge=1,
        le=900,
    )
    requeue_after_s: float = Field(
        30, description="Seconds after which a waiting task is queued again.", ge=1, le=3_600
    )
    requeue_at_most_s: float = Field(
        900, description="Longest pause in seconds before a task is queued again.", ge=1, le=86_400
    )
    sweep_every_s: float = Field(
        5, description="Seconds between two sweeps for late tasks.", gt=0, le=3_600
    )
    clock_skew_s: float | None = Field(
        None,
        description="Seconds by which clocks may differ, added to lease_s. Unset: 5 with SQLite, 60 with DynamoDB.",
        ge=0,
        le=900,
    )
    shards: UpToAThousand = Field(
        8,
        description="Partitions of DynamoDB's index of open tasks, each for 1,000 writes a second; never lower it.",
    )
    max_attempts: Count = Field(
        5, description="Consecutive turns ended by faults of the gateway after which a task fails."
    )
    max_deaths: Count = Field(
        3, description="Workers that died while they ran only this task, after which it fails."
    )
    stop_grace_s: float | None = Field(
        None,
        description="Seconds that running steps get when the process stops. Unset: GATEWAY_DRAIN_S.",
        ge=0,
        le=3_600,
    )
    task_timeout_s: float | None = Field(
        None,
        description="Seconds of work and polls after a wait, after which a task is ended. Unset: nine tenths of ttl_s.",
        gt=0,
        le=2_592_000,
    )
    unserved_s: float = Field(
        3_600,
        description="Seconds for which a task waits for a worker with its tool.",
        ge=0,
        le=2_592_000,
    )
    max_result_bytes: Size = Field(
        4_500_000, description="Largest result in bytes; at most 4,600,000 on AWS Lambda."
    )
    max_open_per_owner: Count = Field(
        1_000, description="Open tasks of one caller; a further task is a tool error."
    )
    max_call_bytes: Size = Field(
        256_000, description="Largest call in bytes: its arguments and the client's description."
    )
    max_journal_bytes: int = Field(
        3_000_000,
        description="Largest journal of one task in bytes, with its answers and events.",
        ge=1_024,
        le=100_000_000,
    )
    max_open_events: UpToAThousand = Field(
        100, description="External events that one task may await at once."
    )
    max_event_bytes: int = Field(
        64_000, description="Largest payload of an event in bytes.", ge=1_024, le=1_000_000
    )

    @property
    def share(self) -> int:
        """The limit on the tasks of one owner that a process runs at once."""
        return max(1, self.concurrency // 2)

    def skew_ms(self, of_store_s: float) -> int:
        """Return the allowed difference of clocks in milliseconds. `of_store_s` is the store's
        default in seconds."""
        return int((of_store_s if self.clock_skew_s is None else self.clock_skew_s) * 1000)


_SCOPE: Final = r"^[!#-\[\]-~]+$"
"""The pattern of a scope (RFC 6749 section 3.3)."""
ScopeName: TypeAlias = Annotated[str, Field(pattern=_SCOPE)]


class CallersConfig(Model):
    """Requirements for callers with tokens."""

    scopes: list[str] = Field([], description="Scopes that every call needs.")
    scopes_supported: list[str] | None = Field(
        None,
        description="Scopes in the metadata document. Unset: the scopes of tools and `scopes`.",
    )
    scope_names: dict[ScopeName, ScopeName] = Field(
        {},
        description="The names under which clients request scopes, by the names in tokens. All other settings use the"
        " names in tokens.",
    )
    operator_scope: str | None = Field(
        None,
        description="The scope of operators, who may use the other routes. Unset: there are no operators.",
        pattern=_SCOPE,
    )

    @model_validator(mode="after")
    def _operators_are_few(self) -> Self:
        if self.operator_scope in self.scopes:
            raise ValueError("operator_scope must not be one of scopes, which every caller has")
        return self

    @model_validator(mode="after")
    def _uses_names_in_tokens(self) -> Self:
        """Refuse a scope under the name in requests, because no token would have it."""
        in_tokens = {requested: name for name, requested in self.scope_names.items()}
        for scope in (*self.scopes, self.operator_scope):
            if scope in in_tokens and scope not in self.scope_names:
                raise ValueError(f"{scope} is the name in requests: write {in_tokens[scope]}")
        return self

    def requested(self, scope: str) -> str:
        """Return the name under which clients request a scope, which may be a name in tokens."""
        return self.scope_names.get(scope, scope)


class JwtAuthConfig(CallersConfig):
    """Bearer JWTs of one authorization server."""

    issuer: str = Field(description="The `iss` of the server's tokens.", min_length=1)
    audience: str | None = Field(
        None, description="The `aud` of tokens. Unset: GATEWAY_PUBLIC_URL with the endpoint's path."
    )
    clients: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="Clients whose tokens are accepted without an `aud`; a token with a wrong one never is. The server"
        " may have made such a token for another service.",
    )
    jwks_url: str = Field(description="URL of the server's public keys.", pattern=r"^https?://")
    algorithms: list[Algorithm] = Field(
        ["RS256", "ES256"], description="Accepted signature algorithms.", min_length=1
    )
    leeway_s: float = Field(30, description="Seconds by which the clocks may differ.", ge=0, le=300)


class AuthorizerConfig(CallersConfig):
    """Callers whose tokens an API Gateway authorizer in front has verified; on AWS Lambda only."""

    authorizer: Literal["api-gateway"] = Field(
        description="The verifier of tokens: the authorizer of the API."
    )
    issuer: str = Field(
        description="The `iss` of the tokens; callers get a token there.", min_length=1
    )
    subject_claim: str = Field("sub", description="The claim that names the subject.", min_length=1)
    client_claim: str = Field(
        "client_id", description="The claim that names the client; azp replaces it if missing."
    )
    scope_claim: str = Field(
        "scope", description="The claim with the scopes: a list, or text separated by spaces."
    )


class CacheSection(Model):
    """The time for which, and the callers for whom, a result may be cached
    (server/utilities/caching)."""

    ttl_ms: int = Field(
        0, description="Milliseconds for which a client may consider the result fresh.", ge=0
    )
    scope: Literal["public", "private"] = Field(
        "public", description="public: the same for every caller; private: for this caller only."
    )


class CachingConfig(Model):
    """Caching hints for the six results that carry them."""

    discover: CacheSection = Field(CacheSection(ttl_ms=3_600_000), description="server/discover")
    tools: CacheSection = Field(CacheSection(ttl_ms=300_000), description="tools/list")
    prompts: CacheSection = Field(CacheSection(ttl_ms=300_000), description="prompts/list")
    resources: CacheSection = Field(CacheSection(ttl_ms=300_000), description="resources/list")
    resource_templates: CacheSection = Field(
        CacheSection(ttl_ms=300_000), description="resources/templates/list"
    )
    read: CacheSection = Field(
        CacheSection(ttl_ms=0, scope="private"), description="resources/read"
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_the_rest(cls, value: Any) -> Any:
        """Keep the field's default for a half of a hint that is not set, so `read` stays
        private."""
        if not isinstance(value, dict):
            return value
        defaults = {name: field.default.model_dump() for name, field in cls.model_fields.items()}
        return {
            name: defaults.get(name, {}) | hint if isinstance(hint, dict) else hint
            for name, hint in value.items()
        }


class PackageConfig(Model):
    """Additional files in the packages of functions."""

    include: list[str] = Field(
        [],
        description="Files, folders and patterns such as data/**/*.csv, relative to gateway.yaml.",
    )


class AuditConfig(Model):
    """The audit log: calls, questions, answers, approvals and acts of operators, in chains of
    hashes."""

    to: Literal["files", "stdout"] = Field(
        "files",
        description="files: one file per process; stdout: lines of standard output, for AWS Lambda and containers.",
    )
    directory: str = Field(
        ".roundgate/audit",
        description="Directory of the files, relative to gateway.yaml.",
        min_length=1,
    )
    key: SecretStr | None = Field(
        None,
        description="Key of the digests of arguments and answers: 32 bytes in base64. Unset: a file in the directory.",
    )
    on_failure: Literal["refuse", "continue"] = Field(
        "refuse",
        description="refuse: refuse calls while the log cannot be written; continue: go on, and log an error.",
    )
    durable: bool = Field(
        False,
        description="Whether the records of a call are flushed to the disk before its answer.",
    )
    checkpoint_s: float = Field(
        60,
        description="Seconds after a record within which a checkpoint is written.",
        ge=1,
        le=86_400,
    )
    max_file_bytes: int = Field(
        100_000_000, description="Size in bytes at which the next file begins.", ge=4_096
    )


MAX_SESSION_S: Final = 86_400
"""The longest `console.session_s`."""


class ConsoleConfig(Model):
    """The console: pages for operators."""

    path: str = Field(
        "/console", description="Path of the console.", pattern=r"^(/[A-Za-z0-9_-]+)+$"
    )
    show_values: bool = Field(
        False, description="Whether pages show the arguments, answers and results of calls."
    )
    session_s: float = Field(
        28_800,
        description="Seconds after which an operator signs in again, unless the token expires first.",
        ge=60,
        le=MAX_SESSION_S,
    )
