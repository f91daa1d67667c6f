"""The loader's changes to the tools of any back end: selection (`include`, `exclude`), changes
(`override`), and forms and approvals around calls.

    the model ──▶ form ──▶ arguments: names, defaults, fixed ──▶ policy ──▶ approval ──▶ limits ──▶ the tool
    the model ◀── projection: `result`, `fields` ◀──────────────────────────────────────────────────────┘

The user approves the call as it will be made, with fixed and hidden arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.backends.approvals import (
    around_calls,
    check_approval,
    guarded,
    like,
    with_defaults,
    with_questions,
)
from roundgate.backends.base import (
    Backend,
    CallTool,
    LiveBackend,
    Offering,
    Returned,
    Tool,
    renamed,
)
from roundgate.backends.config import (
    ArgumentOverride,
    BackendConfig,
    Selector,
    ToolOverride,
    ViewConfig,
)
from roundgate.backends.registry import report_failures
from roundgate.errors import ConfigError, Problem, ToolError
from roundgate.protocol import ABSENT, Schema, TextContent, ToolResult
from roundgate.protocol.content import HINTS, has_hint
from roundgate.replay import Context, call_of
from roundgate.settings import Origin

if TYPE_CHECKING:  # loaded only if there are limits
    from roundgate.backends.limits import Limiters


class ConfiguredBackend:
    """A back end under its name, whose tools are shaped by its settings (`NamedBackend`)."""

    def __init__(
        self,
        backend: Backend,
        config: BackendConfig,
        origin: Origin,
        *,
        is_tolerant: bool = False,
        has_policy: bool = False,
        limiters: Limiters | None = None,
    ) -> None:
        """Store the settings. If `is_tolerant`, a setting that does not fit the tools of a
        `LiveBackend` omits only the tools that it names. If `has_policy`, each call is checked by
        the rules of `policy`. `limiters` has the limits on calls, if there are any."""
        self.name = config.name
        self.prefix = config.effective_prefix
        self.core = backend
        self.config = config
        self._is_tolerant = is_tolerant and isinstance(backend, LiveBackend)
        self.limiters = limiters
        self._has_policy = has_policy
        self._origin = origin

    async def offer(self) -> Offering:
        """Return the offering with the selected tools, changed and guarded as configured.

        Raises:
            ConfigError: the back end cannot be served, or a setting does not fit its tools.
        """
        with report_failures(self.config, self._origin):
            offered: Any = await self.core.offer()
            if not isinstance(offered, Offering):
                raise TypeError(f"offer() returned {type(offered).__name__}, not an Offering")
        left_out = list(offered.left_out)
        problems = left_out if self._is_tolerant else []
        offering = self._plainly_named(offered, left_out, problems)
        chosen = [tool for tool in offering.tools if is_selected(tool, self.config)]
        if not offering.missing:
            problems += self._unmatched(offering, chosen)
        tools: list[Tool] = []
        for tool in chosen:
            try:
                prepared = self._guarded(tool)
            except ValueError as error:
                tool_problems = left_out if tool.is_described_remotely else problems
                tool_problems.append(self._problem(tool, str(error)))
                continue
            name = tool.definition["name"]
            try:
                override = self.config.override.get(name)
                tools.append(prepared if override is None else overridden(prepared, override))
            except ValueError as error:
                place = self._origin.at("override", name)
                problems.append(
                    place.problem(str(error), "correct it; `roundgate check` lists the tools")
                )
        if problems and not self._is_tolerant:
            raise ConfigError(problems)
        return replace(offering, tools=tools, left_out=left_out)

    async def aclose(self) -> None:
        await self.core.aclose()

    def _plainly_named(
        self, offering: Offering, left_out: list[Problem], problems: list[Problem]
    ) -> Offering:
        """Return the offering with the setting `names` applied, under which all other settings know the
        tools. Tools that would have the same name are not served."""
        if self.config.names.dots is None:
            return offering
        by_name: dict[str, list[Tool]] = {}
        for tool in offering.tools:
            by_name.setdefault(self.config.names.plain(tool.definition["name"]), []).append(tool)
        tools: list[Tool] = []
        for name, (tool, *others) in by_name.items():
            if not others:
                tools.append(replace(tool, definition=renamed(tool.definition, name)))
                continue
            clashing = ", ".join(repr(each.definition["name"]) for each in (tool, *others))
            (left_out if tool.is_described_remotely else problems).append(
                self._origin.at("names").problem(
                    f"tools {clashing} would all be called {name!r}",
                    "rename one, or choose another text for `dots`",
                )
            )
        absent = frozenset(map(self.config.names.plain, offering.absent))
        return replace(offering, tools=tools, absent=absent)

    def _guarded(self, tool: Tool) -> Tool:
        """Return the tool with limits, approval, check, defaults and form around its call. The form
        comes first, so the complete call is checked, and the user approves it; only then does it take
        a place.

        Raises:
            ValueError: `approval` or `ask_for` names an unknown argument, or no form can ask for an
            argument.
        """
        if tool.approval is not None:
            check_approval(
                tool.approval, list(tool.definition["inputSchema"].get("properties", ()))
            )
        if self.limiters is not None:
            tool = self.limiters.around(tool)
        called = guarded(tool, self.config, has_policy=self._has_policy)
        return with_questions(with_defaults(called, tool.defaults), tool.ask_for)

    def _problem(self, tool: Tool, message: str) -> Problem:
        if len(tool.place) < 2:
            message = f"tool {tool.definition['name']!r}: {message}"
        remedy = "correct the tool's approval, ask_for or the schema of its arguments"
        return self._origin.at(*tool.place).problem(message, remedy)

    def _unmatched(self, offering: Offering, chosen: Sequence[Tool]) -> list[Problem]:
        """Return a problem for each name that no tool has, and for a selection that leaves no
        tool."""
        config, tool_names = self.config, [tool.definition["name"] for tool in chosen]
        names = [tool.definition["name"] for tool in offering.tools]
        known, named = [*names, *offering.absent], [*tool_names, *offering.absent]
        problems = unknown_names(config, known, named, self._origin, self.prefix)
        is_wrong = any(problem.path.endswith(".name") for problem in problems)
        if names and not chosen and not is_wrong and (config.include or config.exclude):
            place = self._origin.at("include" if config.include else "exclude")
            remedy = "correct it; without include and exclude, `roundgate check` lists all tools"
            problems.insert(0, place.problem("leaves no tool", remedy))
        return problems


def unknown_names(
    config: BackendConfig | ViewConfig,
    names: Collection[str],
    chosen: Collection[str],
    origin: Origin,
    prefix: str = "",
) -> list[Problem]:
    """Return a problem for each name in `include` and `exclude` that no tool has, and for each
    override without effect.

    Args:
        names: the names of all tools.
        chosen: the names of the selected tools.
        prefix: the prefix that `names` lack.
    """
    lists = f"`roundgate check` lists them, {'here without prefix' if prefix else 'with their prefixes'}"
    problems = [
        origin.at(setting, number, "name").problem(
            f"no tool is called {selector.name!r}", f"correct the name; {lists}"
        )
        for setting, selectors in (("include", config.include), ("exclude", config.exclude))
        for number, selector in enumerate(selectors)
        if selector.name is not None and not is_known(selector.name, names, prefix)
    ]
    place = "the view leaves" if isinstance(config, ViewConfig) else "include and exclude leave"
    for name in config.override:
        if name not in chosen:
            is_left_out = f"is the name of a tool that {place} out"
            message = is_left_out if name in names else "is not the name of a tool"
            remedy = f"remove it, or correct the name; {lists}"
            problems.append(origin.at("override", name).problem(message, remedy))
    return problems


def is_selected(tool: Tool, config: BackendConfig) -> bool:
    """Return whether a tool is selected: included if `include` is set, and not excluded."""
    if config.include and not any(matches(tool, selector) for selector in config.include):
        return False
    return not any(matches(tool, selector) for selector in config.exclude)


def is_known(pattern: str, names: Collection[str], prefix: str = "") -> bool:
    """Return whether a selector's name matches a tool. A pattern is always known, unless it begins
    with the prefix that `names` lack."""
    if any(fnmatchcase(name, pattern) for name in names):
        return True
    is_prefixed = prefix != "" and pattern.startswith(prefix)
    return any(sign in pattern for sign in "*?[") and not is_prefixed


def matches(tool: Tool, selector: Selector) -> bool:
    """Return whether a tool matches every member of a selector."""
    about = tool.about
    return (
        (selector.name is None or fnmatchcase(tool.definition["name"], selector.name))
        and (selector.tag is None or any(fnmatchcase(tag, selector.tag) for tag in about.tags))
        and (
            selector.path is None
            or (about.path is not None and fnmatchcase(about.path, selector.path))
        )
        and (selector.method is None or about.method == selector.method.upper())
        and (selector.hint is None or has_hint(tool.definition, selector.hint))
        and (selector.extension is None or _has_extension(about.extensions, selector.extension))
    )


def _has_extension(extensions: Mapping[str, Any], pattern: str) -> bool:
    name, equals, value = pattern.partition("=")
    if not equals:
        return name in extensions and extensions[name] is not False
    member = extensions.get(name)
    text = str(member).lower() if isinstance(member, bool) else str(member)
    return member is not None and fnmatchcase(text, value)


def override_of(backend: BackendConfig, name: str) -> tuple[str, ToolOverride | None]:
    """Return the name in its back end of a tool with a full name, and its override in that back end."""
    without_prefix = name.removeprefix(backend.effective_prefix)
    for own_name, override in backend.override.items():
        if override.name == without_prefix:
            return own_name, override
    return without_prefix, backend.override.get(without_prefix)


def overridden(tool: Tool, override: ToolOverride) -> Tool:
    """Return the tool with an override's changes.

    Raises:
        ValueError: an argument does not exist, a value does not fit its schema, or the projection
            is not an expression.
    """
    arguments = _Arguments.of(tool.definition["inputSchema"], override.arguments)
    definition = {**tool.definition, "inputSchema": arguments.schema}
    for name in ("name", "title", "description"):
        if (value := getattr(override, name)) is not None:
            definition[name] = value
    hints = {
        hint: value
        for name, (hint, _) in HINTS.items()
        if (value := getattr(override, name)) is not None
    }
    if hints:
        definition["annotations"] = {**(definition.get("annotations") or {}), **hints}
    project = _projection(override)
    if project is not None or override.max_result is not None:
        definition.pop("outputSchema", None)
    changed: dict[str, Any] = {} if override.task is None else {"task": override.task}
    if override.max_result is not None:
        changed["max_result"] = override.max_result
    for name in ("ask_in_words", "without_tasks", "argument_mode"):
        if (value := getattr(override, name)) is not None:
            changed[name] = value
    if override.scopes is not None:
        changed["scopes"] = frozenset(override.scopes)
    if override.once:  # an override never clears `once`: an approval covers one run
        changed |= {"once": True, "unasked_answers": False}

    def shaped_call(call: CallTool) -> CallTool:
        return _calling(call, arguments, override.timeout_s, project)

    changed_tool = around_calls(tool, shaped_call, definition=definition, **changed)
    return with_questions(changed_tool, override.ask_for)


class _Arguments(Struct, frozen=True):
    """The arguments as the model sees them, and their conversion into the tool's arguments."""

    schema: Mapping[str, Any]
    names: Mapping[str, str]
    """The tool's names by the model's names, where they differ."""
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]
    refused: frozenset[str]
    """The tool's names of arguments that the model must not use."""

    @classmethod
    def of(cls, schema: Mapping[str, Any], overrides: Mapping[str, ArgumentOverride]) -> _Arguments:
        properties: dict[str, Any] = {}
        required = list(schema.get("required", ()))
        names: dict[str, str] = {}
        fixed: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        members: Mapping[str, Any] = schema.get("properties", {})
        if unknown := sorted(set(overrides) - set(members)):
            raise ValueError(
                f"there are no arguments {', '.join(unknown)}; the arguments are {', '.join(members) or 'none'}"
            )
        for own, member in members.items():
            override = overrides.get(own, ArgumentOverride.model_construct(_fields_set=set()))
            set_members = override.model_fields_set
            if "fixed" in set_members:
                fixed[own] = _checked(schema, own, override.fixed)
            if "default" in set_members:
                defaults[own] = _checked(schema, own, override.default)
            if set_members & {"fixed", "default"} and own in required:
                required.remove(own)
            if "fixed" in set_members or override.hidden:
                if own in required:
                    raise ValueError(
                        f"argument {own!r} is required: if hidden, give it a fixed value or a default"
                    )
                continue
            name = override.name or own
            # if the new name belongs to an overridden argument, that argument's turn finds a collision
            if name in properties or (name != own and name in members and name not in overrides):
                raise ValueError(
                    f"arguments {names.get(name, name)!r} and {own!r} would both be called {name!r};"
                    " set `name` of one of them"
                )
            properties[name] = _described(member, override)
            if name != own:
                names[name] = own
        called = {own: name for name, own in names.items()}
        required = [called.get(argument, argument) for argument in required]
        seen = set(names) | (set(properties) - set(names.values()))
        changed = {**schema, "properties": properties, "required": required}
        return cls(changed, names, fixed, defaults, frozenset(set(members) - seen))

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the model's arguments to the tool's; raise ToolError for a name that the model
        must not use."""
        if hidden := sorted(self.refused & arguments.keys()):
            raise ToolError(f"Invalid arguments: unknown arguments {', '.join(hidden)}")
        return {
            **self.defaults,
            **{self.names.get(name, name): value for name, value in arguments.items()},
            **self.fixed,
        }


def _described(member: Any, override: ArgumentOverride) -> Any:
    more = {
        name: getattr(override, name)
        for name in ("description", "default")
        if name in override.model_fields_set
    }
    return {**(member if isinstance(member, dict) else {}), **more} if more else member


def _checked(schema: Mapping[str, Any], name: str, value: Any) -> Any:
    """Return a configured value; raise ValueError if the argument's schema rejects it."""
    member = schema["properties"][name]
    alone = {**(member if isinstance(member, dict) else {}), "$defs": schema.get("$defs", {})}
    if problems := Schema.compile(alone).problems(value, f"arguments.{name}"):
        raise ValueError("; ".join(problems))
    return value


_Project: TypeAlias = Callable[[Any], Any]


def _projection(override: ToolOverride) -> _Project | None:
    """Return the function that `result` or `fields` applies to a JSON value; `None` without a
    projection.

    Raises:
        ValueError: the expression is invalid.
    """
    if override.result is None and not override.fields:
        return None
    if override.result is None:
        return lambda value: (
            [_chosen(item, override.fields) for item in value]
            if isinstance(value, list)
            else _chosen(value, override.fields)
        )
    import jmespath  # imported only if an expression is configured

    expression = override.result
    try:
        compiled = jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"result {expression!r} is not a JMESPath expression: {reason}") from None

    def project(value: Any) -> Any:
        try:
            return compiled.search(value)
        except (ArithmeticError, TypeError, ValueError) as error:  # jmespath passes on Python's
            reason = str(error).splitlines()[0][:200]
            raise ToolError(
                f"The gateway's projection cannot be applied to the result: {reason}"
            ) from None

    return project


def _chosen(item: Any, fields: Sequence[str]) -> Any:
    return {name: item.get(name) for name in fields} if isinstance(item, dict) else item


def _calling(
    call: CallTool, arguments: _Arguments, timeout_s: float | None, project: _Project | None
) -> CallTool:
    async def changed(context: Any, model_arguments: dict[str, Any]) -> Returned:
        if project is not None:
            call_of(context).shapes_result = True
        returned = await _within(timeout_s, call, context, arguments(model_arguments))
        if project is None or not isinstance(returned, ToolResult) or returned.is_error:
            return returned
        return _projected(returned, project)

    return like(call, changed) if timeout_s is None else changed


async def _within(
    timeout_s: float | None, call: CallTool, context: Context, arguments: dict[str, Any]
) -> Returned:
    if timeout_s is None:
        return await call(context, arguments)
    try:
        async with context.timeout(timeout_s, "override"):
            return await call(context, arguments)
    except TimeoutError:
        raise ToolError(
            f"The call took more than {timeout_s:g} s (timeout_s); ask for less, or try again later"
        ) from None


def _projected(result: ToolResult, project: _Project) -> ToolResult:
    """Return a result with only the projected part of its JSON; a result without JSON is
    unchanged."""
    if result.structured_content is ABSENT:
        return result
    value = project(result.structured_content)
    text = value if isinstance(value, str) else json.encode(value).decode()
    return replace(result, content=(TextContent(text),), structured_content=value)
