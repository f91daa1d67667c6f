"""Test suites for MCP servers: files of test cases with expected outcomes.

`loading` reads and validates a file, `running` runs its cases with `roundgate.client`, `expecting`
compares outcomes with expectations, and `results` makes reports. `roundgate.cli.suite` is the
command `roundgate test`.
"""

from __future__ import annotations

from roundgate.settings.redacting import Secrets as Secrets
from roundgate.suites.expecting import Difference as Difference
from roundgate.suites.expecting import Snapshots as Snapshots
from roundgate.suites.loading import SuiteFile as SuiteFile
from roundgate.suites.loading import load as load
from roundgate.suites.models import Case as Case
from roundgate.suites.models import schema_of_suites as schema_of_suites
from roundgate.suites.results import CaseResult as CaseResult
from roundgate.suites.results import Failure as Failure
from roundgate.suites.results import SuiteResult as SuiteResult
from roundgate.suites.results import Verdict as Verdict
from roundgate.suites.results import failure_lines as failure_lines
from roundgate.suites.results import junit as junit
from roundgate.suites.running import Run as Run
from roundgate.suites.targets import Target as Target
from roundgate.suites.targets import started as started
from roundgate.suites.variables import Variables as Variables
