"""Test suites for MCP servers: files of test cases with expected outcomes.

`loading` reads and validates a file, `running` runs its cases with `roundgate.client`, `expecting`
compares outcomes with expectations, and `results` makes reports. `roundgate_testing.suite_command` is the
command `roundgate test`.
"""

from __future__ import annotations

from roundgate.settings.redacting import Secrets as Secrets
from roundgate_testing.suites.expecting import Mismatch as Mismatch
from roundgate_testing.suites.expecting import Snapshots as Snapshots
from roundgate_testing.suites.loading import SuiteFile as SuiteFile
from roundgate_testing.suites.loading import load as load
from roundgate_testing.suites.models import Case as Case
from roundgate_testing.suites.models import schema_of_suites as schema_of_suites
from roundgate_testing.suites.results import CaseResult as CaseResult
from roundgate_testing.suites.results import Failure as Failure
from roundgate_testing.suites.results import SuiteResult as SuiteResult
from roundgate_testing.suites.results import Verdict as Verdict
from roundgate_testing.suites.results import failure_lines as failure_lines
from roundgate_testing.suites.results import junit as junit
from roundgate_testing.suites.running import SuiteRun as SuiteRun
from roundgate_testing.suites.targets import SuiteTarget as SuiteTarget
from roundgate_testing.suites.targets import started as started
from roundgate_testing.suites.variables import Variables as Variables
