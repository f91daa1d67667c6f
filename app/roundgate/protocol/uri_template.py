"""The reverse of RFC 6570 URI templates: the values, if any, that expand to a URI
(server/resources, "Resource Templates").

Parsing refuses templates whose expansion has no well-defined inverse, so that they fail at start-up
and not on a request. Matching walks the URI once per piece of the template, from right to left: for
every URI, time and memory grow with the product of the two lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from msgspec import Struct
from pydantic import AnyUrl

Values: TypeAlias = dict[str, str | list[str]]
# For each offset in the URI: the end of a piece that starts there, chosen so that all later
# pieces fit; or _NOWHERE.
Route: TypeAlias = list[int]

_NOWHERE: Final = -1
_RESERVED: Final = ":/?#[]@!$&'()*+,;="
_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_TRIPLET: Final = "%[0-9A-Fa-f]{2}"
_VALUE: Final = rf"(?:[{re.escape(_UNRESERVED)}]|{_TRIPLET})*+"
_URI: Final = re.compile(rf"(?:[{re.escape(_UNRESERVED + _RESERVED)}]|{_TRIPLET})*+")
_NAME: Final = re.compile(rf"(?:\w|{_TRIPLET})+(?:\.(?:\w|{_TRIPLET})+)*", re.ASCII)
_PART: Final = re.compile(r"\{(?P<body>[^{}]*)\}|(?P<literal>[^{}]+)|(?P<stray>[{}])")
# Section 2.1, and lone surrogates, which have no UTF-8; "'" is allowed since erratum 6937.
_NOT_LITERAL: Final = re.compile(rf'[\x00-\x20\x7f-\x9f"<>\\^`|\ud800-\udfff]|(?!{_TRIPLET})%')
_ASCII: Final = bytes(range(128)).decode()
_BEYOND_ASCII: Final = re.compile("%[89A-Fa-f][0-9A-Fa-f]")
"""A byte of a percent-encoded character beyond ASCII."""
_MAX_DECODINGS: Final = 3
_IGNORED: Final = re.compile(r"[\t\r\n]")
"""The characters that URL parsers remove."""
_SCHEME_AND_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://[^/?#]*)?")
_SLASHES: Final = re.compile(r"/{2,}")
_DOT_SEGMENT: Final = re.compile(r"(?:\A|[/\\:?#])\.\.?(?:[/\\?#]|\Z)")


def has_dot_segments(uri: str) -> bool:
    """Return whether a URI has a segment `.` or `..`, encoded or not. A server may read such a URI
    as another one, so its text does not say which resource it names."""
    texts = (_IGNORED.sub("", text) for text in decodings_of(uri))
    return any(_DOT_SEGMENT.search(text) is not None for text in texts)


def readings_of(uri: str) -> set[str]:
    """Return the texts as which a server may read a URI: itself, decoded up to `_MAX_DECODINGS`
    times, and each of these as URL parsers normalize it (`normal_readings`)."""
    return {*decodings_of(uri), *normal_readings(decodings_of(uri))}


def normal_readings(decodings: Iterable[str]) -> set[str]:
    """Return the decodings of a URI as URL parsers normalize them, also if a server decodes the path
    only after it has parsed the URI."""
    normalized = {normalized_uri(text) for text in decodings}
    return {with_single_slashes(text) for uri in normalized for text in decodings_of(uri)}


def decodings_of(uri: str) -> list[str]:
    """Return a URI, and its text after each of up to `_MAX_DECODINGS` decodings."""
    texts = [uri]
    while len(texts) <= _MAX_DECODINGS and (decoded := unquote(texts[-1])) != texts[-1]:
        texts.append(decoded)
    return texts


def ascii_uri(uri: str) -> str:
    """Return the form in which URIs are looked up: characters beyond ASCII are percent-encoded UTF-8
    with upper case digits (RFC 3987 section 3.1). Everything else is unchanged."""
    if uri.isascii() and "%" not in uri:
        return uri
    encoded = quote(uri, safe=_ASCII, errors="surrogatepass")
    return _BEYOND_ASCII.sub(lambda triplet: triplet[0].upper(), encoded)


def normalized_uri(uri: str) -> str:
    """Return a URI with scheme and authority in lower case and without repeated slashes in its path,
    otherwise as `ascii_uri` and `AnyUrl` normalize it: many servers read URIs with it. Return text
    without a scheme unchanged."""
    try:
        text = str(AnyUrl(ascii_uri(uri)))
    except ValueError:
        text = uri
    return with_single_slashes(text)


def with_single_slashes(uri: str) -> str:
    """Return a URI with scheme and authority in lower case, and without repeated slashes in its
    path. Return text without a scheme unchanged."""
    parts = _SCHEME_AND_AUTHORITY.match(uri)
    if parts is None:
        return uri
    return parts[0].lower() + _SLASHES.sub("/", uri[parts.end() :])


class _Operator(Struct, frozen=True):
    """One column of the table in RFC 6570 appendix A."""

    first: str
    separator: str
    is_named: bool = False
    if_empty: str = ""
    takes_reserved: bool = False
    may_explode: bool = True
    is_guarded: bool = True  # not in the RFC: values are single path segments

    def encode(self, value: str) -> str:
        """Encode a value (section 3.2.1): `+` and `#` keep reserved characters and existing
        triplets."""
        if not self.takes_reserved:
            return quote(value, safe="")
        parts = re.split(f"({_TRIPLET})", value)
        return "".join(
            part if at % 2 else quote(part, safe=_RESERVED) for at, part in enumerate(parts)
        )

    def decode(self, text: str) -> str:
        value = unquote(text, errors="strict")
        if self.is_guarded and ("/" in value or value in {".", ".."}):
            raise ValueError("a value has several segments, or is a dot segment")
        return value


_OPERATORS: Final[Mapping[str, _Operator]] = MappingProxyType(
    {
        # `{x*}` would be a comma list, but some MCP servers use it for "any path": refuse,
        # and name both spellings.
        "": _Operator("", ",", may_explode=False),
        "+": _Operator("", ",", takes_reserved=True, is_guarded=False),
        "#": _Operator("#", ",", takes_reserved=True, is_guarded=False, may_explode=False),
        ".": _Operator(".", "."),
        "/": _Operator("/", "/"),
        ";": _Operator(";", ";", is_named=True),
        "?": _Operator("?", "&", is_named=True, if_empty="=", is_guarded=False),
        "&": _Operator("&", "&", is_named=True, if_empty="=", is_guarded=False),
    }
)


class _Literal(Struct, frozen=True):
    """Literal text of a template."""

    text: str

    def expand(self, _values: Mapping[str, str | list[str]]) -> str:
        return self.text

    def route(self, uri: str, onward: Route) -> Route:
        route = [_NOWHERE] * len(onward)
        for end in range(len(self.text), len(onward)):
            if onward[end] != _NOWHERE and uri.endswith(self.text, 0, end):
                route[end - len(self.text)] = end
        return route

    def read(self, _text: str) -> Values:
        return {}


class _Value(Struct, frozen=True):
    """A value, or a list with its separators, identified by its position. It matches as much as the
    later pieces leave."""

    operator: _Operator
    name: str
    is_exploded: bool
    alphabet: frozenset[str]

    def route(self, uri: str, onward: Route) -> Route:
        # Offsets inside a triplet get an entry too, but no way leads there: every
        # piece takes whole triplets.
        route = [_NOWHERE if end == _NOWHERE else position for position, end in enumerate(onward)]
        for position in reversed(range(len(uri))):
            following = position + (3 if uri[position] == "%" else 1)
            if uri[position] in self.alphabet and route[following] != _NOWHERE:
                route[position] = route[following]
        return route

    def read(self, text: str) -> Values:
        if not self.is_exploded:
            return {self.name: self.operator.decode(text)}
        if self.operator.is_guarded and text.startswith("/"):
            raise ValueError("a list would be an absolute path")
        return {
            self.name: [self.operator.decode(item) for item in text.split(self.operator.separator)]
        }


class _Expression(Struct, frozen=True):
    """An expression between braces (section 2.2); `at` is the offset of the opening brace."""

    operator: _Operator
    names: tuple[str, ...]
    exploded: frozenset[str]
    at: int

    def expand(self, values: Mapping[str, str | list[str]]) -> str:
        """Expand the expression (section 3.2.1): an undefined variable or an empty list expands to
        nothing."""
        texts = [text for name in self.names for text in self._texts(name, values.get(name, []))]
        return self.operator.first + self.operator.separator.join(texts) if texts else ""

    def _texts(self, name: str, value: str | list[str]) -> list[str]:
        texts = [
            self.operator.encode(item) for item in ([value] if isinstance(value, str) else value)
        ]
        if texts and name not in self.exploded:
            texts = [",".join(texts)]
        if not self.operator.is_named:
            return texts
        return [name + (f"={text}" if text else self.operator.if_empty) for text in texts]

    def pieces(self, starts_later: frozenset[str]) -> Iterator[_Piece]:
        """Yield the pieces of the expression. `starts_later` has the first characters of later
        `{?}`, `{&}`, `{;}` and `{#}`, which values of this expression must not contain."""
        alphabet = (
            frozenset(_UNRESERVED + "%" + (_RESERVED if self.operator.takes_reserved else ""))
            - starts_later
        )
        separator = frozenset({self.operator.separator})
        # only a list contains separators, otherwise its beginning would be ambiguous
        if self.exploded:
            alphabet -= separator
        for index, name in enumerate(self.names):
            if text := self.operator.separator if index else self.operator.first:
                yield _Literal(text)
            is_list = name in self.exploded
            yield _Value(
                self.operator, name, is_list, alphabet | separator if is_list else alphabet
            )


class _Parameters(_Expression, frozen=True):
    """`name=value` pairs in any order, each optional. The piece takes all adjacent pairs, so it has
    only one possible end."""

    def route(self, uri: str, onward: Route) -> Route:
        ends = list(range(len(onward)))  # where the chain of pairs that begins here ends
        for pair in reversed(list(self._pair().finditer(uri))):
            is_continued = uri.startswith(self.operator.separator, pair.end())
            ends[pair.start()] = ends[pair.end()] if is_continued else pair.end()
        ends = [
            end if uri.startswith(self.operator.first, position) else position
            for position, end in enumerate(ends)
        ]
        return [_NOWHERE if onward[end] == _NOWHERE else end for end in ends]

    def _pair(self) -> re.Pattern[str]:
        """Return a pattern for a whole `name` or `name=value` with the character before it."""
        starts = re.escape(self.operator.first + self.operator.separator)
        names = "|".join(map(re.escape, self.names))
        return re.compile(rf"[{starts}](?:{names})(?:={_VALUE})?(?![{re.escape(_UNRESERVED)}%=])")

    def read(self, text: str) -> Values:
        values: dict[str, list[str]] = {}
        for pair in text[1:].split(self.operator.separator) if text else ():
            name, _, value = pair.partition("=")
            if name in values and name not in self.exploded:
                raise ValueError("a parameter has two values")
            values.setdefault(name, []).append(self.operator.decode(value))
        return {
            name: items if name in self.exploded else items[0] for name, items in values.items()
        }


_Part: TypeAlias = _Literal | _Expression | _Parameters
_Piece: TypeAlias = _Literal | _Value | _Parameters


class UriTemplate(Struct, frozen=True):
    """One template, for example `notes://{owner}/{+path}{?lang}`. `exploded` names the variables
    whose values are lists."""

    text: str
    variables: tuple[str, ...]
    exploded: frozenset[str]
    _parts: tuple[_Part, ...]
    _pieces: tuple[_Piece, ...]

    @classmethod
    def parse(cls, text: str) -> UriTemplate:
        """Read a template.

        Some templates that RFC 6570 allows are refused, because one URI would have several
        readings: prefixes (`{x:3}`), a variable named twice, two exploded lists outside `{?}`,
        `{&}` and `{;}`, and these three before text that could belong to their last value. Explode
        works with `+ . / ; ? &`.

        Raises:
            ValueError: the template is invalid or refused; the message has the fault, its character
                (counted from 1) and the remedy.
        """
        parts = tuple(_parse_part(text, match) for match in _PART.finditer(text))
        expressions = [part for part in parts if isinstance(part, _Expression)]
        _check_variables(text, expressions)
        _check_text_after_parameters(text, parts)
        names = tuple(name for expression in expressions for name in expression.names)
        exploded = frozenset(name for expression in expressions for name in expression.exploded)
        return cls(text, names, exploded, parts, _make_pieces(parts))

    def match(self, uri: str) -> Values | None:
        """Return the values that expand to `uri`, percent-decoded as UTF-8; `None` if there are
        none, or a value is not allowed.

        `notes://ann/2026/may.txt?lang=en` gives `{"owner": "ann", "path":
        "2026/may.txt", "lang": "en"}` above.

        - Parameters of `{?}`, `{&}` and `{;}` come in any order and may be absent; a parameter that
        the template does not name, or that occurs twice without `*`, prevents a match. Every other
        variable must be present; "" is a value. - Bare reserved characters fit `{+x}` and `{#x}`
        only. Of two adjacent variables, the left one takes as much as possible, but `{+x}` ends at
        the first character that a later `{?}`, `{&}`,
          `{;}` or `{#}` begins with.
        - Handlers join values to paths. So in `{x}`, `{.x}`, `{/x}` and `{;x}` a "/" (sent as
          %2F) and the segments "." and ".." do not match, however encoded, nor does a list `{/x*}`
          that starts with "" and has more items. `{+x}`, `{#x}`, `{?x}` and `{&x}` accept all of
          these: a handler that makes a path of them must confine it. Nothing else is refused, not
              even NUL or a backslash.
        - `{+x*}` is split at each ",", `{.x*}` at each ".": no value of that expression can contain
        that character.
        """
        if not _URI.fullmatch(uri):
            return None
        routes = [[_NOWHERE] * len(uri) + [len(uri)]]
        for piece in reversed(self._pieces):
            routes.append(piece.route(uri, routes[-1]))
        return None if routes[-1][0] == _NOWHERE else self._read(uri, routes[:0:-1])

    def _read(self, uri: str, routes: list[Route]) -> Values | None:
        values: Values = {}
        position = 0
        try:
            for piece, route in zip(self._pieces, routes, strict=True):
                values |= piece.read(uri[position : route[position]])
                position = route[position]
        except ValueError:  # not UTF-8, a guarded segment, or a parameter given twice
            return None
        return values

    def expand(self, values: Mapping[str, str | list[str]]) -> str:
        """Return the URI for these values (RFC 6570 section 3). Names that the template lacks are
        ignored."""
        return "".join(part.expand(values) for part in self._parts)


def _parse_part(text: str, match: re.Match[str]) -> _Part:
    if match["stray"]:
        raise _fault(
            text,
            match.start(),
            f"{match[0]!r} is unmatched",
            "add its counterpart, or write %7B for '{', %7D for '}'",
        )
    if match["literal"] is None:
        return _parse_expression(text, match.start(), match["body"])
    if bad := _NOT_LITERAL.search(text, match.start(), match.end()):
        raise _fault(
            text,
            bad.start(),
            f"{bad[0]!r} is not allowed in a URI",
            "percent-encode it ('%' is %25)",
        )
    # section 3.1: "é" stands for its triplets
    return _Literal(quote(match[0], safe=_RESERVED + "%"))


def _parse_expression(text: str, at: int, body: str) -> _Expression:
    symbol = "" if re.match(r"[\w%]|$", body) else body[0]
    if symbol not in _OPERATORS:
        raise _fault(
            text, at + 1, f"{symbol!r} is not an operator", "use one of + # . / ; ? & or none"
        )
    specs = body[len(symbol) :].split(",")
    names = tuple(_parse_name(text, at, symbol, spec) for spec in specs)
    exploded = frozenset(name for name, spec in zip(names, specs, strict=True) if name != spec)
    kind = _Parameters if _OPERATORS[symbol].is_named else _Expression
    return kind(_OPERATORS[symbol], names, exploded, at)


def _parse_name(text: str, at: int, symbol: str, spec: str) -> str:
    name, colon, _ = spec.removesuffix("*").partition(":")
    if not _NAME.fullmatch(name):
        raise _fault(
            text,
            at,
            f"{name!r} is not a variable name",
            "use letters, digits, '_', single dots between them",
        )
    if colon:
        raise _fault(
            text, at, f"the prefix {spec!r} hides the rest of the value", f"write {name!r}"
        )
    if name != spec and not _OPERATORS[symbol].may_explode:
        remedy = f"write {{+{name}}} for text with '/' in it, {{/{name}*}} for a list of segments"
        raise _fault(text, at, f"{{{symbol}{spec}}} cannot be exploded", remedy)
    return name


def _check_variables(text: str, expressions: list[_Expression]) -> None:
    """Raise ValueError for a repeated name, and for a second exploded list outside of parameters,
    because the first list would have no clear end."""
    names, lists = set[str](), 0
    for expression in expressions:
        lists += 0 if isinstance(expression, _Parameters) else len(expression.exploded)
        if lists > 1:
            raise _fault(
                text,
                expression.at,
                "a second exploded list leaves the first without an end",
                "drop one '*'",
            )
        for name in expression.names:
            if name in names:
                raise _fault(
                    text,
                    expression.at,
                    f"variable {name!r} is named twice",
                    "rename one of the two",
                )
            names.add(name)


def _check_text_after_parameters(text: str, parts: tuple[_Part, ...]) -> None:
    """Raise ValueError for a text after parameters that begins with a character of a value, because
    the last value would have no clear end."""
    allowed = set[
        str
    ]()  # characters that the next parameter here or in a neighbouring expression may begin with
    for part, following in pairwise(parts):
        if not isinstance(part, _Parameters):
            allowed.clear()
            continue
        allowed |= {part.operator.first, part.operator.separator}
        start = following.text[0] if isinstance(following, _Literal) else following.operator.first
        if (
            not start
            or start in _UNRESERVED + "%="
            or (isinstance(following, _Literal) and start in allowed)
        ):
            problem = f"the text after the {{{part.operator.first}}} expression could belong to its last value"
            raise _fault(text, part.at, problem, "move it to the end, or put '/' or '#' after it")


def _make_pieces(parts: tuple[_Part, ...]) -> tuple[_Piece, ...]:
    """Return the pieces to match, in order. They are made from the right, because values end where
    a later expression can begin."""
    pieces: list[_Piece] = []
    starts_later = frozenset[str]()
    for part in reversed(parts):
        pieces[:0] = (
            [part] if isinstance(part, _Literal | _Parameters) else part.pieces(starts_later)
        )
        if isinstance(part, _Expression):
            starts_later |= set(part.operator.first) & set("?&;#")
    return tuple(pieces)


def _fault(text: str, at: int, problem: str, remedy: str) -> ValueError:
    return ValueError(f"URI template {text!r}, character {at + 1}: {problem}; {remedy}")
