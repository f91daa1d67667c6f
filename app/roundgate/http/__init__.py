"""The HTTP layer. Besides `main` and `roundgate_aws`, no other package uses ASGI, Starlette or
FastAPI."""

from __future__ import annotations

from roundgate.http.arrival import ConnectionMiddleware as ConnectionMiddleware
from roundgate.http.bodies import BodyBudget as BodyBudget
from roundgate.http.endpoint import McpEndpoint as McpEndpoint
from roundgate.http.exchange import GRACE_S as GRACE_S
from roundgate.http.exchange import Hosting as Hosting
from roundgate.http.protected import ProtectedResource as ProtectedResource
from roundgate.http.request import Guard as Guard
from roundgate.http.request import RequestMiddleware as RequestMiddleware
from roundgate.http.request import default_hosts as default_hosts
from roundgate.http.request import public_origins as public_origins
from roundgate.http.routes import EVENTS as EVENTS
from roundgate.http.routes import HEALTH as HEALTH
from roundgate.http.routes import PROBES as PROBES
from roundgate.http.routes import Health as Health
from roundgate.http.routes import Operations as Operations
from roundgate.http.routes import Rate as Rate
from roundgate.http.routes import Upstream as Upstream
from roundgate.http.routes import make_metrics_router as make_metrics_router
from roundgate.http.routes import make_router as make_router
from roundgate.http.routes import not_found_handler as not_found_handler
from roundgate.http.routes import nothing_at as nothing_at
