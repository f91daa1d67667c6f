"""The parts that a configuration is made of, and the settings of a process.

Knows no back end: `roundgate.config` puts the whole of gateway.yaml together, above them.
"""

from __future__ import annotations

from roundgate.settings import process as process
from roundgate.settings import yaml_file as yaml_file
from roundgate.settings.base import Model as Model
from roundgate.settings.base import Origin as Origin
from roundgate.settings.base import TaskMode as TaskMode
from roundgate.settings.base import WithoutTasks as WithoutTasks
from roundgate.settings.environment import KEPT as KEPT
from roundgate.settings.process import Settings as Settings
from roundgate.settings.references import kept_at_aws as kept_at_aws
from roundgate.settings.references import read_file as read_file
from roundgate.settings.secret import Reference as Reference
from roundgate.settings.secret import Secret as Secret
from roundgate.settings.secret import checked as checked
from roundgate.settings.secret import found_in as found_in
from roundgate.settings.secret import settings_of as settings_of
from roundgate.settings.sections import AuthorizerConfig as AuthorizerConfig
from roundgate.settings.sections import CacheHint as CacheHint
from roundgate.settings.sections import CachingConfig as CachingConfig
from roundgate.settings.sections import CallersConfig as CallersConfig
from roundgate.settings.sections import FallbackConfig as FallbackConfig
from roundgate.settings.sections import HttpConfig as HttpConfig
from roundgate.settings.sections import JwtAuthConfig as JwtAuthConfig
from roundgate.settings.sections import LimitsConfig as LimitsConfig
from roundgate.settings.sections import PackageConfig as PackageConfig
from roundgate.settings.sections import ServerConfig as ServerConfig
from roundgate.settings.sections import SessionsConfig as SessionsConfig
from roundgate.settings.sections import StateConfig as StateConfig
from roundgate.settings.sections import TasksConfig as TasksConfig
