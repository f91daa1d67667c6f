"""The parts of a configuration, and the settings of a process.

This package knows no back end; `roundgate.config` combines its parts into the whole gateway.yaml.
"""

from __future__ import annotations

from roundgate.settings import process as process
from roundgate.settings import yaml_file as yaml_file
from roundgate.settings.process import Settings as Settings
from roundgate.settings.references import CallerReference as CallerReference
from roundgate.settings.references import Deferred as Deferred
from roundgate.settings.references import Expression as Expression
from roundgate.settings.references import Reference as Reference
from roundgate.settings.references import Secret as Secret
from roundgate.settings.references import checked as checked
from roundgate.settings.references import expressions as expressions
from roundgate.settings.references import is_kept_at_aws as is_kept_at_aws
from roundgate.settings.references import kept_at_aws as kept_at_aws
from roundgate.settings.references import parts as parts
from roundgate.settings.references import read_file as read_file
from roundgate.settings.references import settings_of as settings_of
from roundgate.settings.sections import MAX_SESSION_S as MAX_SESSION_S
from roundgate.settings.sections import ArgumentMode as ArgumentMode
from roundgate.settings.sections import ArgumentsConfig as ArgumentsConfig
from roundgate.settings.sections import AuditConfig as AuditConfig
from roundgate.settings.sections import AuthorizerConfig as AuthorizerConfig
from roundgate.settings.sections import CacheSection as CacheSection
from roundgate.settings.sections import CachingConfig as CachingConfig
from roundgate.settings.sections import CallersConfig as CallersConfig
from roundgate.settings.sections import CallLimits as CallLimits
from roundgate.settings.sections import ConsoleConfig as ConsoleConfig
from roundgate.settings.sections import FallbackConfig as FallbackConfig
from roundgate.settings.sections import HttpConfig as HttpConfig
from roundgate.settings.sections import JwtAuthConfig as JwtAuthConfig
from roundgate.settings.sections import LimitsConfig as LimitsConfig
from roundgate.settings.sections import Model as Model
from roundgate.settings.sections import PackageConfig as PackageConfig
from roundgate.settings.sections import RateConfig as RateConfig
from roundgate.settings.sections import ServerConfig as ServerConfig
from roundgate.settings.sections import SessionsConfig as SessionsConfig
from roundgate.settings.sections import StateConfig as StateConfig
from roundgate.settings.sections import TaskMode as TaskMode
from roundgate.settings.sections import TasksConfig as TasksConfig
from roundgate.settings.sections import WithoutTasks as WithoutTasks
from roundgate.settings.yaml_file import Origin as Origin
