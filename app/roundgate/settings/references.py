"""The references `${…}` in configurations, and the secrets that they stand for.

    ${NAME}   ${NAME:-default}            a variable of the environment; ${env:NAME} is the same
    ${file:PATH}                          the text of a file
    ${secret:NAME}   ${secret:NAME#KEY}   a secret of AWS Secrets Manager; KEY: a member of its JSON
    ${ssm:NAME}      ${ssm:NAME#KEY}      a parameter of AWS Systems Manager, decrypted
    ${caller.subject}                     who calls; in `headers` of back ends, as the whole value
    $${                                   a literal ${

`parts` parses the references of gateway.yaml and its section `env`, of suites, and of the stack's
parameters. `Resolver.fill_in` resolves variables and files in gateway.yaml. A value that may change
while the gateway runs becomes a `Secret`, which holds references instead of texts;
`roundgate.backends.secret_reading` reads the texts when they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from roundgate import json
from roundgate.errors import ConfigError, ParseError, Problem, UnresolvedReference
from roundgate.settings.files import read_regular
from roundgate.settings.yaml_file import Loc, Origin

Kept: TypeAlias = Literal["secret", "ssm", "file"]
"""The place of a text: AWS Secrets Manager, AWS Systems Manager Parameter Store, the file
system."""
_EXPRESSION: Final = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?:(?P<source>env|file|secret|ssm):)?(?P<name>(?:[^}:]|:(?!-))+)"
    r"(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}"
    r"|\$\{"
)
_AT_AWS: Final = re.compile(r"(?P<name>[^\s#$]+)(?:#(?P<key>.+))?", re.DOTALL)
_OWN_NAME: Final = re.compile(r"(?!GATEWAY_|AWS_|LAMBDA_)[A-Za-z][A-Za-z0-9_]{0,79}")


class Expression(NamedTuple):
    """A reference `${…}`."""

    source: str
    """The source: `env`, `file`, `secret` or `ssm`; empty for `${NAME}`."""
    name: str
    default: str | None

    @property
    def kept(self) -> Reference | None:
        """The reference to AWS, or `None` for other sources.

        Raises:
            UnresolvedReference: the text is neither a name nor `NAME#KEY`, or has a default.
        """
        if self.source not in ("secret", "ssm"):
            return None
        match = _AT_AWS.fullmatch(self.name)
        if match is None or self.default is not None:
            raise _not_a_reference()
        return Reference(cast("Kept", self.source), match["name"], match["key"])


def parts(text: str) -> list[str | Expression]:
    """Return the plain texts and the references of a string, in order, without empty texts.

    Raises:
        UnresolvedReference: a `${` does not begin a reference.
    """
    pieces: list[str | Expression] = []
    end = 0
    for match in _EXPRESSION.finditer(text):
        pieces.append(text[end : match.start()])
        end = match.end()
        if match["escape"]:
            pieces.append("${")
        elif match["name"] is None:
            raise _not_a_reference()
        else:
            pieces.append(Expression(match["source"] or "", match["name"], match["default"]))
    return [part for part in (*pieces, text[end:]) if part]


def _not_a_reference() -> UnresolvedReference:
    remedy = (
        "write ${NAME}, ${NAME:-default}, ${file:path}, ${secret:NAME} or ${ssm:NAME}, or $${ for"
        " a plain ${"
    )
    message = "${ does not begin a valid reference"
    return UnresolvedReference(message, remedy, is_syntax=True)


def expressions(value: Any) -> Iterator[Expression]:
    """Yield the references in all strings of a value, such as a file's content; skip malformed
    strings."""
    for _, text in settings_of(value):
        if isinstance(text, str) and "${" in text:
            try:
                yield from (part for part in parts(text) if isinstance(part, Expression))
            except UnresolvedReference:
                continue


def kept_at_aws(value: Any) -> Iterator[Reference]:
    """Yield the references to AWS in all strings of a value; skip malformed references."""
    for expression in expressions(value):
        try:
            if (reference := expression.kept) is not None:
                yield reference
        except UnresolvedReference:
            continue


def is_kept_at_aws(text: str) -> bool:
    """Return whether a text is a single reference to AWS and nothing else."""
    return bool(list(kept_at_aws(text))) and len(parts(text)) == 1


# Secrets


class Reference(Struct, frozen=True):
    """A reference to a text that the gateway reads on demand."""

    kept: Kept
    name: str
    """The name or ARN; for a file, its path."""
    key: str | None = None
    """The member of the JSON object to use; `None` for the whole text."""

    def __str__(self) -> str:
        return f"{self.kept}:{self.name}{'' if self.key is None else f'#{self.key}'}"


Parts: TypeAlias = tuple[str | Reference, ...]
"""The texts and references whose concatenation is a value."""


class Deferred(Struct, frozen=True):
    """A string of gateway.yaml with references that are not yet read. Only a `Secret` accepts
    it."""

    parts: Parts
    problem: Problem | None = None
    """The problem of a file that could not be read. The back end with this `Secret` reports the
    problem; other back ends are served."""

    def __repr__(self) -> str:
        return "Deferred()"


CALLER_FACTS: Final = ("subject", "issuer", "client", "call")
"""The facts about a caller besides its claims."""
_CALLER: Final = "caller."
_CLAIM: Final = "claims."


class CallerReference(Struct, frozen=True):
    """A reference `${caller.FACT}`, whose value each request of a caller has anew. Only `headers` of
    back ends accept it."""

    fact: str
    """One of `CALLER_FACTS`, or `claims.NAME`."""

    @property
    def claim(self) -> str | None:
        """The name of the claim, or a JSON Pointer to it; `None` for other facts."""
        return self.fact.removeprefix(_CLAIM) if self.fact.startswith(_CLAIM) else None

    def __str__(self) -> str:
        return f"{_CALLER}{self.fact}"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(
            cls, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^\$\{caller\..+\}$"}


def _caller_reference(pieces: Sequence[str | Expression]) -> CallerReference | None:
    """Return the reference to the caller in the pieces of a text, or `None` if there is none.

    Raises:
        UnresolvedReference: the reference is unknown, has a default, or is not the whole text.
    """
    references = [
        piece
        for piece in pieces
        if isinstance(piece, Expression) and not piece.source and piece.name.startswith(_CALLER)
    ]
    if not references:
        return None
    name, default = references[0].name, references[0].default
    if len(pieces) > 1 or default is not None:
        message = f"${{{name}}} must be the whole value, without a default"
        raise UnresolvedReference(message, "use one header for each fact", is_syntax=True)
    fact = name.removeprefix(_CALLER)
    if fact not in CALLER_FACTS and (not fact.startswith(_CLAIM) or fact == _CLAIM):
        facts = ", ".join(f"${{{_CALLER}{known}}}" for known in CALLER_FACTS)
        remedy = f"write {facts} or ${{{_CALLER}{_CLAIM}NAME}}"
        raise UnresolvedReference(f"${{{name}}} is not known", remedy, is_syntax=True)
    return CallerReference(fact)


def misplaced(place: Origin) -> Problem:
    """Return the problem of a reference to AWS in a setting that does not accept references."""
    return place.problem(
        "may not be a reference to AWS",
        "use ${secret:…} and ${ssm:…} in `credential`, `credentials` and `headers` of a back end;"
        " elsewhere ${NAME} and ${file:path}",
    )


def misplaced_caller(place: Origin) -> Problem:
    """Return the problem of a reference to the caller in a setting that does not accept it."""
    return place.problem(
        "may not be a reference to the caller, which no request has yet",
        "use ${caller.…} in `headers` of an http, openapi or mcp back end, or write $${ for a plain ${",
    )


class FromFiles(str):
    """A string of gateway.yaml with files' contents filled in. A `Secret` made from it reads the
    files again."""

    __slots__ = ("parts",)
    parts: Parts


class Secret(Struct, frozen=True):
    """A setting that is redacted in logs and dumps, such as a credential for a service."""

    parts: Parts
    check: Callable[[str], None] = lambda _: None
    """Raises ValueError for an unusable text."""
    first: str | None = None
    """The contents of files when the configuration was read; `None` once they are checked."""

    @property
    def text(self) -> str | None:
        """The secret's text, or `None` if the secret has references."""
        if self.references:
            return None
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def references(self) -> tuple[Reference, ...]:
        return tuple(part for part in self.parts if isinstance(part, Reference))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return "Secret()"

    def __str__(self) -> str:
        return "**********"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _secret_from, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "format": "password", "writeOnly": True}


def _secret_from(value: Any) -> Secret:
    match value:
        case Secret():
            return value
        case Deferred(parts=parts):
            return Secret(parts)
        case FromFiles(parts=parts):
            return Secret(parts, first=str(value))
        case str():
            return Secret((value,))
    raise PydanticCustomError("string_type", "Input should be a valid string")


def checked(check: Callable[[str], None]) -> Callable[[Secret], Secret]:
    """Return a function for `pydantic.AfterValidator` that checks a known text immediately and any
    other text when it is read."""

    def fit(secret: Secret) -> Secret:
        current = secret.text if secret.first is None else secret.first
        if current is not None:
            check(current)
        return replace(secret, check=check, first=None)

    return fit


def settings_of(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Yield each setting without members in a part of the configuration, with its location."""
    match value:
        case BaseModel():
            for name, about in type(value).model_fields.items():
                yield from settings_of(getattr(value, name), (*loc, about.alias or name))
        case dict():
            for name, item in value.items():
                yield from settings_of(item, (*loc, name))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from settings_of(item, (*loc, index))
        case _:
            yield loc, value


# gateway.yaml


class Resolver(Struct, frozen=True):
    """A resolver for the references of one gateway.yaml."""

    environ: Mapping[str, str]
    placeholder: str | None
    """A replacement for references to AWS and for references that cannot be resolved on this
    machine, which then cause no problem. `None` reports them."""
    problems: list[Problem]
    """A list that receives a problem for each reference that cannot be resolved."""
    files: set[Path] = field(default_factory=set)
    """A set that receives the files that references name."""

    def fill_in(self, value: Any, origin: Origin) -> Any:
        """Return a part of the file with its references filled in.

        A string with `${secret:NAME}` or `${ssm:NAME}`, or with a file that cannot be read, becomes
        a `Deferred`; `${caller.FACT}` becomes a `CallerReference`.
        """
        match value:
            case dict():
                return {key: self.fill_in(item, origin.at(key)) for key, item in value.items()}
            case list():
                return [self.fill_in(item, origin.at(at)) for at, item in enumerate(value)]
            case str() if "${" in value:
                return self._filled(value, origin)
            case _:
                return value

    def environment(self, section: Any, origin: Origin) -> dict[str, str]:
        """Return the variables of a section `env` with their values.

        A variable of the process wins. A reference to AWS must be the whole value, in the file or
        in the process's variable, and is read immediately.
        """
        values: dict[str, str] = {}
        for name, own in section.items() if isinstance(section, dict) else ():
            if not isinstance(name, str) or not isinstance(own, str):
                continue  # the model reports it
            place, text = origin.at(name), self.environ.get(name, own)
            references = list(kept_at_aws(text))
            if not references:
                filled = text if name in self.environ else self._filled(text, place)
                if isinstance(filled, CallerReference):
                    self.problems.append(misplaced_caller(place))
                values[name] = filled if isinstance(filled, str) else ""
                if isinstance(filled, Deferred) and filled.problem is not None:
                    self.problems.append(filled.problem)
            elif not is_kept_at_aws(text):
                remedy = "remove the text around it"
                message = "a reference to AWS must be the whole value"
                self.problems.append(place.problem(message, remedy))
            else:
                values[name] = self.placeholder or self._read_now(references[0], place)
        return values

    def _filled(self, value: str, origin: Origin) -> str | Deferred | CallerReference:
        texts: list[str] = []
        whole: list[str | Reference] = []
        unread: Problem | None = None
        try:
            pieces = parts(value)
            if (caller := _caller_reference(pieces)) is not None:
                return caller
        except UnresolvedReference as error:
            self.problems.append(origin.problem(str(error), error.remedy))
            return value
        for part in pieces:
            reference: Reference | None = None
            text = ""
            try:
                text, reference = (part, None) if isinstance(part, str) else self._now(part, origin)
            except UnresolvedReference as error:
                problem = origin.problem(str(error), error.remedy)
                if self.placeholder is not None and not error.is_syntax:
                    text = self.placeholder
                elif isinstance(part, Expression) and part.source == "file":
                    unread, reference = unread or problem, _reference_from_file(part, origin)
                else:
                    self.problems.append(problem)
            texts.append(text)
            whole.append(text if reference is None else reference)
        kinds = {part.kept for part in whole if isinstance(part, Reference)}
        if kinds - {"file"} or unread is not None:
            kept = (self._stand_in(part) for part in whole if part)
            return Deferred(tuple(kept), unread)
        if not kinds:
            return "".join(texts)
        filled_text = FromFiles("".join(texts))
        filled_text.parts = tuple(part for part in whole if part)
        return filled_text

    def _stand_in(self, part: str | Reference) -> str | Reference:
        """Return the placeholder, if there is one, for a reference to AWS."""
        is_at_aws = isinstance(part, Reference) and part.kept != "file"
        return self.placeholder if is_at_aws and self.placeholder is not None else part

    def _now(self, expression: Expression, origin: Origin) -> tuple[str, Reference | None]:
        """Return the text of a reference, and a `Reference` if the text may change later or is not
        yet read.

        Raises:
            UnresolvedReference: the reference cannot be resolved.
        """
        if (cached := expression.kept) is not None:
            return "", cached
        if expression.source == "file" and expression.default is None:
            reference = _reference_from_file(expression, origin)
            self.files.add(Path(reference.name))
            return read_file(Path(reference.name), expression.name), reference
        if expression.source == "file" or ":" in expression.name:
            raise _not_a_reference()
        value = self.environ.get(expression.name) or expression.default
        if value is None:
            remedy = f"set it, or write ${{{expression.name}:-default}}"
            raise UnresolvedReference(
                f"the environment variable {expression.name} is not set", remedy
            )
        return value, None

    def _read_now(self, reference: Reference, place: Origin) -> str:
        from roundgate import aws

        name, key = reference.name, reference.key
        try:
            store = STORES_AT_AWS[reference.kept]
            client = aws.client(store.service)
            text = store.text(getattr(client, store.operation)(**store.arguments(name)))
            return text if key is None else str(json.decode(text.encode())[key])
        except ConfigError as error:
            self.problems.extend(error.problems)
        except (ParseError, KeyError, TypeError):
            complaint = f"is not a JSON object with the member {key}" if key else "is not a text"
            remedy = "correct the reference, or the value at AWS"
            self.problems.append(place.problem(f"{name} {complaint}", remedy))
        except Exception as error:  # boto3 makes most of its exception classes at run time
            code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
            remedy = "correct its name or the region, create it, or permit the role to read it; here, set the variable"
            self.problems.append(place.problem(f"{name} cannot be read from AWS: {code}", remedy))
        return ""


class StoreAtAws(NamedTuple):
    """An AWS service that stores texts under names."""

    service: str
    title: str
    """The service's name in messages."""
    action: str
    """The IAM action that a role needs."""
    operation: str
    arguments: Callable[[str], dict[str, Any]]
    """A function that makes the operation's arguments from the name of a text."""
    text: Callable[[Any], str]
    """A function that returns the text in the operation's answer; raises KeyError if it has
    none."""


STORES_AT_AWS: Final[Mapping[str, StoreAtAws]] = {
    "secret": StoreAtAws(
        "secretsmanager",
        "AWS Secrets Manager",
        "secretsmanager:GetSecretValue",
        "get_secret_value",
        lambda name: {"SecretId": name},
        lambda answer: str(answer["SecretString"]),
    ),
    "ssm": StoreAtAws(
        "ssm",
        "the Parameter Store of AWS Systems Manager",
        "ssm:GetParameter",
        "get_parameter",
        lambda name: {"Name": name, "WithDecryption": True},
        lambda answer: str(answer["Parameter"]["Value"]),
    ),
}
"""The AWS services by the source of a reference."""


def _reference_from_file(expression: Expression, origin: Origin) -> Reference:
    return Reference("file", str(origin.base_dir / expression.name))


def read_file(file: Path, name: str) -> str:
    """Return the text of a file without line breaks at its end.

    Raises:
        UnresolvedReference: the file cannot be read. The message calls it `name`.
    """
    try:
        return read_regular(file).rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        remedy = "mount the file, or correct the path"
        raise UnresolvedReference(f"{name}: {reason}", remedy) from None


def own_name(name: str) -> str:
    """Return the name of a variable that gateway.yaml declares, if the name is valid.

    Raises:
        ValueError: `name` is not a variable's name, or is reserved for the gateway or AWS.
    """
    if _OWN_NAME.fullmatch(name) is None:
        raise ValueError(
            "use letters, digits and _, at most 80 characters; begin with a letter, but not with"
            " GATEWAY_, AWS_ or LAMBDA_"
        )
    return name
