"""The section `policy` of gateway.yaml: rules about tools, prompts and resources.
`roundgate.policy.rules` applies them."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from roundgate.settings.sections import Model


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
"""One text, or a list of texts. In each, `*` stands for any text."""

Hint: TypeAlias = Literal["read_only", "destructive", "idempotent", "open_world"]
Kind: TypeAlias = Literal["tool", "prompt", "resource"]
KINDS: Final[tuple[Kind, ...]] = ("tool", "prompt", "resource")
"""The kinds of targets that rules may name, each by its own member."""
_MEANT: Final = {
    **dict.fromkeys(("group", "groups"), "claims: {groups: …}"),
    **dict.fromkeys(("role", "roles"), "claims: {roles: …}"),
    **dict.fromkeys(("user", "users"), "subject, or a claim such as claims: {email: …}"),
    **dict.fromkeys(("skill", "skills"), "resource: skill://BACKEND/NAME/*"),
    **dict.fromkeys(("template", "templates", "uri"), "resource"),
}
"""Names that people try, with the member that they mean."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.*-]*:")


class CallMatch(Model):
    """The calls to which a rule applies: all members must match, each by any of its texts. `tool`,
    `prompt` and `resource` name targets, of which a call has one."""

    subject: Texts | None = Field(None, description="Subjects of callers.")
    client: Texts | None = Field(None, description="Clients of callers.")
    scope: Texts | None = Field(None, description="Scopes of the caller's token.")
    claims: dict[str, Texts] = Field(
        {},
        description="Values of claims of the caller's token, by the name of the claim or a JSON Pointer.",
    )
    tool: Texts | None = Field(None, description="Whole names of tools, with their prefixes.")
    prompt: Texts | None = Field(None, description="Whole names of prompts, with their prefixes.")
    resource: Texts | None = Field(
        None, description="URIs of resources and of the files of skills, as the gateway lists them."
    )
    backend: Texts | None = Field(None, description="Names of back ends.")
    view: Texts | None = Field(None, description='Names of views; "" is the endpoint of all tools.')
    hint: Annotated[tuple[Hint, ...], BeforeValidator(_listed), Field(min_length=1)] | None = Field(
        None, description="Hints that are true for the tool, as listed or by default."
    )
    arguments: dict[str, Any] | None = Field(
        None, description="A JSON Schema to which the arguments that the back end gets conform."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_known_members(cls, value: Any) -> Any:
        """Refuse members that people expect, and name the member that they mean."""
        if isinstance(value, str):
            raise ValueError(
                "is text: write a mapping, such as {tool: refund}; {} matches all calls"
            )
        for name in value if isinstance(value, dict) else ():
            if (member := _MEANT.get(name)) is not None:
                raise ValueError(f"{name} is not a member of a rule: write {member}")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _has_value(cls, value: Any) -> Any:
        """Refuse a member without a value. Otherwise a rule whose text was lost would match all calls."""
        if value is None:
            raise ValueError("is empty: give it a value, or remove it")
        return value

    @field_validator("claims")
    @classmethod
    def _has_claims(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse `claims: {}`, which would match the calls of all callers."""
        if not value:
            raise ValueError("is empty: give it a value, or remove it")
        return value

    @field_validator("scope")
    @classmethod
    def _are_scopes(cls, value: Sequence[str]) -> Sequence[str]:
        """Refuse blanks, which no scope has. Otherwise a rule that denies `a b` would deny nothing."""
        if wrong := [scope for scope in value if scope.split() != [scope]]:
            raise ValueError(f"{wrong[0]!r} is not a scope: write a list, such as [a, b]")
        return value

    @field_validator("resource")
    @classmethod
    def _are_uris(cls, value: Sequence[str]) -> Sequence[str]:
        """Refuse texts that are no URIs, because a rule that denies them would deny nothing, or less
        than is meant."""
        for text in value:
            if "{" in text:
                raise ValueError(f"{text!r} has a variable of a template: write * in its place")
            if text.endswith("/") and not text.endswith("//"):
                what = f"write {text}* for all that is in it, or {text[:-1]} for it alone"
                raise ValueError(f"{text!r} ends with a slash: {what}")
            if not text.startswith("*") and not _SCHEME.match(text):
                raise ValueError(f"{text!r} has no scheme: write a URI, such as file:///secret/*")
        return value

    @model_validator(mode="after")
    def _is_about_tools(self) -> Self:
        """Refuse members that only tools have in a rule about other targets."""
        if (self.prompt or self.resource) and (self.hint or self.arguments is not None):
            member = "hint" if self.hint else "arguments"
            raise ValueError(f"{member} is of tools: write another rule for prompts and resources")
        return self

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of targets that the rule concerns: all, unless a member says otherwise."""
        if self.hint or self.arguments is not None:
            return frozenset({"tool"})
        return frozenset(kind for kind in KINDS if getattr(self, kind)) or frozenset(KINDS)

    @property
    def asks_for_callers(self) -> bool:
        """Return whether the rule applies to some callers only."""
        return bool(self.claims) or any((self.subject, self.client, self.scope))


class RuleConfig(Model):
    """A rule: the calls that it allows, or the calls that it denies."""

    name: str | None = Field(
        None,
        description="Name of the rule in logs and metrics. Unset: its place, such as policy[2].",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
    )
    allow: CallMatch | None = Field(None, description="The calls to allow; {} matches all calls.")
    deny: CallMatch | None = Field(None, description="The calls to refuse; {} matches all calls.")

    @property
    def match(self) -> CallMatch:
        """The calls to which the rule applies."""
        match = self.deny if self.allow is None else self.allow
        assert match is not None, "a rule has one of them"
        return match

    @model_validator(mode="after")
    def _has_one_effect(self) -> Self:
        if (self.allow is None) == (self.deny is None):
            raise ValueError("give either allow or deny; {} matches all calls")
        return self
