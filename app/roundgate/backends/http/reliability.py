"""What can be set of how a service is called: tries, how many at once, a circuit
breaker, times of parts."""

from __future__ import annotations

from pydantic import Field, model_validator

from roundgate.settings import Model


class RetryConfig(Model):
    """When a request is sent again. Only those are whose repetition changes nothing: GET, HEAD,
    PUT, DELETE, tools that say `idempotent: true`, and requests with an idempotency key; any, if
    no connection was made."""

    attempts: int = Field(3, description="How often it is sent at most.", ge=1, le=10)
    pause_s: float = Field(
        0.2,
        description="Seconds before the second time, about; twice as many before each further one, "
        "10 at most.",
        gt=0,
        le=10,
    )
    within_s: float = Field(
        30,
        description="Seconds from the first time after which it is not sent again, also where "
        "Retry-After asks for a longer pause.",
        gt=0,
        le=3_600,
    )


class LimitConfig(Model):
    """How many requests one process has under way to one host."""

    concurrent: int = Field(description="At most so many.", ge=1)
    waiting: int = Field(
        100,
        description="How many more may wait for their turn; further ones are a tool error.",
        ge=0,
    )
    wait_s: float = Field(
        10, description="Seconds after which waiting is a tool error.", gt=0, le=3_600
    )


class BreakerConfig(Model):
    """When a host is left alone for a while: it does not answer, or answers 502, 503 or 504."""

    failures: int = Field(5, description="So many failures in a row.", ge=1)
    pause_s: float = Field(
        30,
        description="Seconds for which calls are tool errors at once; then one is tried, and "
        "decides.",
        gt=0,
        le=3_600,
    )


class TimeoutsConfig(Model):
    """Seconds for parts of a request, within timeout_s."""

    connect_s: float | None = Field(None, description="For a connection, TLS included.", gt=0)
    write_s: float | None = Field(
        None, description="For the service to take each piece of the request.", gt=0
    )
    read_s: float | None = Field(
        None, description="For each piece of the answer to come, the first included.", gt=0
    )

    @model_validator(mode="after")
    def _means_something(self) -> TimeoutsConfig:
        if not self.model_fields_set:
            raise ValueError("give at least one of connect_s, write_s and read_s")
        return self
