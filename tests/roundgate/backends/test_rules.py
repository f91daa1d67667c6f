"""Rules about calls: how they match callers, names and arguments, and in which order they decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth import Principal
from roundgate.backends.base import Tool
from roundgate.backends.schema_values import ArgumentSchema, with_schema
from roundgate.errors import ArgumentsRefused, CallRefused
from roundgate.policy.arguments import looks_at
from roundgate.policy.config import RuleConfig
from roundgate.policy.items import ItemRules
from roundgate.policy.rules import Caller, Policy, decision
from roundgate.policy.texts import RuleTexts
from roundgate.protocol import PartlyKnown, schemas
from roundgate.settings import Origin
from roundgate.settings.yaml_file import Located

PLACE = Origin(Located(Path("gateway.yaml"), {}, {("policy", 1): 12}), ("policy",))


async def _never(context: Any, arguments: Any) -> Any:
    raise AssertionError


TOOL = Tool({"name": "t", "inputSchema": {"type": "object"}}, _never)


def policy(*rules: dict[str, Any]) -> Policy:
    return Policy.of([RuleConfig.model_validate(rule) for rule in rules], PLACE)


def ann(*scopes: str, **claims: Any) -> Principal:
    return Principal("issuer", "ann", "cli", frozenset(scopes), claims=claims)


@pytest.mark.parametrize(
    ("text", "value", "matches"),
    [
        ("a", "a", True),
        ("a", "A", False),
        ("a*", "a", True),
        ("a*", "ab\nc", True),
        ("*b", "ab\n", False),
        ("*", "", True),
        ("a?c", "abc", False),
        ("a?c", "a?c", True),
        ("a?*", "a?c", True),
        ("a?*", "abc", False),
        ("[ab]*", "a", False),
        ("[ab]*", "[ab]c", True),
        ("a.*", "abc", False),
    ],
)
def test_only_a_star_stands_for_other_text(text: str, value: str, matches: bool) -> None:
    assert RuleTexts([text]).match(value) is matches
    assert RuleTexts([text]).match_any([value]) is matches
    assert RuleTexts(["other", text, "more*"]).match_any({"x", value}) is matches


@given(st.text(alphabet="ab*?[]", max_size=8), st.text(alphabet="ab?[]", max_size=8))
def test_a_text_without_a_star_matches_itself_alone(text: str, value: str) -> None:
    if "*" not in text:
        assert RuleTexts([text]).match(value) is (text == value)
    elif RuleTexts([text]).match(value):
        assert all(part in value for part in text.split("*"))


def test_many_stars_take_no_exponential_time() -> None:
    assert not RuleTexts(["*a" * 40 + "*b"]).match("a" * 20_000)


@pytest.mark.parametrize(
    ("claim", "texts"),
    [
        ("a", {"a"}),
        ("a b,c", {"a b,c"}),
        (["a", "b"], {"a", "b"}),
        (["a", ["b"], {"c": 1}, None, 1.5], {"a"}),
        (True, {"true"}),
        ([False, 7], {"false", "7"}),
        ({"a": 1}, set()),
        (None, set()),
    ],
)
def test_the_values_of_a_claim_are_texts(claim: Any, texts: set[str]) -> None:
    assert ann(x=claim).claim("x") == frozenset(texts)
    assert ann(**{"in": {"x": claim}}).claim("/in/x") == frozenset(texts)
    assert ann().claim("x") == ann(**{"in": claim}).claim("/in/none/y") == frozenset()


SMALL = {"properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}


def test_arguments_that_cannot_be_validated_are_refused() -> None:
    schema = {"properties": {"n": {"enum": ["x"]}}, "required": ["n"]}
    for rules in (
        policy({"deny": {"arguments": schema}}, {"allow": {}}),
        policy({"allow": {"arguments": schema}}),
    ):
        of_tool = rules.for_tool(TOOL.definition, "t", "shop", "")
        assert of_tool is not None
        with pytest.raises(ArgumentsRefused):
            of_tool.authorizer(ann())(lambda: PartlyKnown({"n": "\ud800"}))


def test_arguments_that_would_take_too_long_to_validate_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas, "MAX_READINGS", 1_000)
    node = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    tree = {"type": "object", "properties": {"left": node, "right": node}}
    schema = {"$defs": {"a": tree, "b": tree}, "not": {"properties": {"tree": node}}}
    value: Any = {}
    for _ in range(12):
        value = {"left": value, "right": value}
    for rules in (
        policy({"deny": {"arguments": schema}}, {"allow": {}}),
        policy({"allow": {"arguments": {"$defs": schema["$defs"], "properties": {"tree": node}}}}),
    ):
        of_tool = rules.for_tool(TOOL.definition, "t", "shop", "")
        assert of_tool is not None
        of_tool.authorizer(ann())(lambda: PartlyKnown({"tree": {}}))
        with pytest.raises(ArgumentsRefused):
            of_tool.authorizer(ann())(lambda: PartlyKnown({"tree": value}))


def test_arguments_are_not_made_if_no_rule_looks_at_them() -> None:
    def unused() -> PartlyKnown:
        raise AssertionError

    of_tool = policy({"allow": {}}).for_tool(TOOL.definition, "t", "shop", "")
    assert of_tool is not None
    of_tool.authorizer(ann())(unused)


def test_a_refusal_names_the_rule_and_its_error_does_not() -> None:
    of_tool = policy(
        {"allow": {"scope": "a"}}, {"name": "no-one", "deny": {"claims": {"groups": "b"}}}
    ).for_tool(TOOL.definition, "t", "shop", "")
    assert of_tool is not None
    for principal, rule in ((ann(), "policy"), (ann(groups="b"), "no-one")):
        with pytest.raises(CallRefused) as refused:
            of_tool.check(principal)
        assert refused.value.rule == rule
        assert "no-one" not in str(refused.value)
    of_tool.check(ann("a", groups="b"))


def test_an_unknown_claim_of_a_task_applies_only_to_denials() -> None:
    rules = policy(
        {"deny": {"claims": {"x": "1"}}}, {"allow": {"claims": {"y": "1"}}}, {"allow": {}}
    )
    unknown = Caller(ann().keeping(()))
    assert [rule.is_for(unknown) for rule in rules.rules] == [True, False, True]
    kept = ann(x="2", y="1", email="ann@example.com").keeping(rules.claims)
    assert kept.kept_claims == {"x": ["2"], "y": ["1"]}
    assert [rule.is_for(Caller(kept)) for rule in rules.rules] == [False, True, True]


def test_own_tools_need_no_rule() -> None:
    assert policy({"deny": {}}).for_tool(TOOL.definition, "read_more", "", "") is None


MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.sampled_from(["a", "b"]),
        "claims": st.sampled_from([{"g": "1"}, {"g": ["1", "2"]}]),
        "arguments": st.sampled_from([SMALL, {"required": ["m"]}]),
    },
)
RULES = st.lists(
    st.one_of(st.fixed_dictionaries({"allow": MATCHES}), st.fixed_dictionaries({"deny": MATCHES})),
    min_size=1,
    max_size=6,
)
CALLERS = st.builds(
    lambda scopes, groups: ann(*scopes, g=groups),
    st.sets(st.sampled_from("ab")),
    st.sampled_from(["1", ["2"], ["1", "2"], "3", None]),
)
ARGUMENTS = st.fixed_dictionaries({}, optional={"n": st.sampled_from([1, 10, "x"]), "m": st.none()})


def expected(rules: list[dict[str, Any]], caller: Principal, arguments: dict[str, Any]) -> bool:
    """Return the decision of the first rule that matches, as the documentation describes it."""
    groups = caller.claim("g") or frozenset()
    for rule in rules:
        ((effect, match),) = rule.items()
        texts = match.get("claims", {}).get("g", groups)
        is_small = isinstance(arguments.get("n"), int) and arguments["n"] <= 9
        if (
            match.get("scope", "a") in (caller.scopes if "scope" in match else "a")
            and (
                "claims" not in match or groups & set([texts] if isinstance(texts, str) else texts)
            )
            and (match.get("arguments") is not SMALL or is_small)
            and (match.get("arguments", SMALL) is SMALL or "m" in arguments)
        ):
            return bool(effect == "allow")
    return False


@given(RULES, CALLERS, ARGUMENTS)
def test_the_first_rule_that_matches_decides_and_lists_hide_no_allowed_tool(
    rules: list[dict[str, Any]], caller: Principal, arguments: dict[str, Any]
) -> None:
    of_tool = policy(*rules).for_tool(TOOL.definition, "t", "shop", "")
    assert of_tool is not None
    rule = decision(of_tool.deciding(Caller(caller)), lambda: PartlyKnown(arguments))
    is_allowed = rule is not None and rule.allows
    assert is_allowed == expected(rules, caller, arguments)
    assert of_tool.may_allow(caller) or not is_allowed


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"properties": {"a": {"default": 1}}}, {}, {"a": 1}),
        ({"properties": {"a": {"default": 1}}}, {"a": None}, {"a": None}),
        # as zod writes an object with defaults
        (
            {"properties": {"a": {"default": {}, "properties": {"b": {"default": 1}}}}},
            {},
            {"a": {"b": 1}},
        ),
        (
            {"$defs": {"B": {"default": 1}}, "properties": {"b": {"$ref": "#/$defs/B"}}},
            {},
            {"b": 1},
        ),
        (
            {"properties": {"a": {"anyOf": [{"properties": {"b": {"default": 1}}}, {}]}}},
            {"a": {}},
            {"a": {"b": 1}},
        ),
        (
            {
                "oneOf": [
                    {"properties": {"kind": {"const": "x"}, "b": {"default": 1}}},
                    {"properties": {"kind": {"const": "y"}, "b": {"default": 2}}},
                ]
            },
            {"kind": "y"},
            {"kind": "y", "b": 2},
        ),
        (
            {"additionalProperties": {"items": {"allOf": [{"properties": {"b": {"default": 1}}}]}}},
            {"x": [{}, {"b": 2}]},
            {"x": [{"b": 1}, {"b": 2}]},
        ),
        ({"properties": {"a": {"$ref": "#/missing"}}, "$ref": "#"}, {}, {}),
        # endless
        ({"properties": {"a": {"$ref": "#", "default": {}}}}, {}, None),
        (
            {"properties": {name: {"$ref": "#", "default": {}} for name in "ab"}},
            {},
            None,
        ),
        # a member without a name may be another name of a member that has one
        ({"properties": {"a": {}}}, {"b": 1}, None),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, None),
        ({"properties": {"a": {"properties": {"b": {}}}}}, {"a": {"c": 1}}, None),
        ({"properties": {"a": {"items": {"properties": {"b": {}}}}}}, {"a": [{"c": 1}]}, None),
        ({"type": "object"}, {"b": 1}, {"b": 1}),
        ({"properties": {"a": {}}}, {"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 1}}}),
        (
            {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}},
            {"a": {"b": 1}},
            {"a": {"b": 1}},
        ),
        (
            {"properties": {"a": {"anyOf": [{"properties": {"b": {}}}, {"type": "null"}]}}},
            {"a": {"c": 1}},
            None,
        ),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            {"a": 1, "b": 1},
            {"a": 1, "b": 1},
        ),
    ],
)
def test_the_defaults_of_a_schema_are_set_at_any_depth(
    schema: Any, arguments: Any, expected: Any
) -> None:
    before = json.dumps([schema, arguments])
    known = with_schema(ArgumentSchema(schema), arguments)
    assert (None if () in known.unknown else known.value) == expected
    assert json.dumps([schema, arguments]) == before


def test_a_rule_that_denies_applies_to_unknown_arguments() -> None:
    for rules in (
        policy({"deny": {"arguments": SMALL}}, {"allow": {}}),
        policy({"allow": {"arguments": SMALL}}),
    ):
        of_tool = rules.for_tool(TOOL.definition, "t", "shop", "")
        assert of_tool is not None
        with pytest.raises(ArgumentsRefused):
            of_tool.authorizer(ann())(lambda: PartlyKnown({"n": 1}, [()]))


PATTERN = st.from_regex(r"docs://[ab*]{1,3}(/[ab*]{1,2})?", fullmatch=True)
RULE = st.builds(
    lambda effect, uri: {effect: {"resource": uri} if uri else {}},
    st.sampled_from(["allow", "deny"]),
    st.none() | PATTERN,
)
TEMPLATES = ["docs://{x}/{y}", "docs://a{x}/{y}", "docs://{+x}", "docs://{x}/b"]


@given(
    st.lists(RULE, max_size=4),
    st.sampled_from(TEMPLATES),
    st.text("ab", min_size=1, max_size=2),
    st.text("ab", min_size=1, max_size=2),
)
def test_a_template_is_listed_if_one_of_its_uris_is_allowed(
    rules: list[dict[str, Any]], template: str, x: str, y: str
) -> None:
    items = ItemRules(policy(*rules, {"deny": {"resource": "docs://none"}}), "", {})
    caller = Caller(ann())
    uri = template.replace("{x}", x).replace("{y}", y).replace("{+x}", f"{x}/{y}")
    if items.resource_refusal(uri, "b", caller) is None:
        assert items.may_match(template, {}, "b", caller)
        assert items.may_match(template, {"x": x}, "b", caller) or "{+x}" in template
        assert items.may_match(template, {"x": x, "y": y}, "b", caller) or "{+x}" in template


def test_a_page_is_read_only_if_no_reading_is_a_refused_page() -> None:
    rules = policy({"deny": {"tool": "b"}}, {"allow": {"tool": "*", "resource": "docs://*"}})

    pages = [
        (page, rules.for_tool({"name": name}, name, "up", ""))
        for name, page in (("a", "ui://up/a"), ("b", "ui://up/a?b"))
    ]
    items, caller = ItemRules(rules, "", pages), Caller(ann())
    read = [
        uri
        for uri in (
            "ui://up/a",
            "ui://up/%61",
            "ui://up/a?b",
            "ui://up/a?c",
            "ui://up/c",
            "docs://a",
        )
        if items.resource_refusal(uri, "up", caller) is None
    ]
    assert read == ["ui://up/a", "ui://up/%61", "docs://a"]


@pytest.mark.parametrize(
    ("schema", "text", "is_unknown"),
    [
        ({"type": "string"}, "1000", False),
        ({}, "1000", True),
        ({}, "ORDER-1", False),
        ({"type": ["string", "number"]}, "1000", True),
        ({"type": ["string", "number"]}, " 1_000 ", True),
        ({"type": ["string", "number"]}, "１０００", True),
        ({"type": ["string", "integer"]}, "0x10", True),
        ({"type": ["string", "number"]}, "nan", True),
        ({"type": ["string", "number"]}, "ORDER-1", False),
        ({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+$"}]}, "1000", True),
        ({"anyOf": [{"$ref": "#/$defs/N"}, {"type": "string"}]}, "1000", True),
        ({"anyOf": [{"const": 5}, {"type": "string"}]}, "5", True),
        ({"type": ["string", "null"]}, "null", False),
        ({"type": ["string", "boolean"]}, "Yes", True),
        ({"type": ["string", "boolean"]}, "maybe", False),
        ({"type": ["string", "array"]}, '["a"]', True),
        ({"type": ["string", "object"]}, ' {"a": 1}', True),
    ],
)
def test_a_text_that_may_be_read_as_another_value_is_unknown(
    schema: Any, text: str, is_unknown: bool
) -> None:
    document = ArgumentSchema({"properties": {"a": schema}, "$defs": {"N": {"type": "number"}}})
    assert with_schema(document, {"a": text}).unknown == [("a",)] * is_unknown
    definitions = {"L": {"items": schema}, "N": {"type": "number"}}
    of_list = ArgumentSchema({"properties": {"a": {"$ref": "#/$defs/L"}}, "$defs": definitions})
    assert with_schema(of_list, {"a": [1, text]}).unknown == [("a", 1)] * is_unknown
    of_map = ArgumentSchema({"patternProperties": {"^a": schema}, "$defs": definitions})
    assert with_schema(of_map, {"a": text}).unknown == [("a",)] * is_unknown


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "array"}])
def test_a_text_without_a_schema_is_unknown_if_it_reads_as_another_value(
    schema: Any,
) -> None:
    document = ArgumentSchema({"properties": {"a": schema}})
    part: Any = {"sum": "1000", "note": "hi"} if schema["type"] == "object" else ["1000", "hi"]
    place = "sum" if schema["type"] == "object" else 0
    assert with_schema(document, {"a": part}).unknown == [("a", place)]


@pytest.mark.parametrize(
    ("schema", "looks"),
    [
        ({"properties": {"b": {"maximum": 1}}, "required": ["a"]}, False),
        ({"properties": {"a": {}}, "type": "object", "minProperties": 1}, False),
        ({"properties": {"a": {"properties": {"c": {"const": 1}}}}}, False),
        ({"properties": {"a": {"required": ["b"]}}}, False),
        ({"additionalProperties": False}, False),
        ({"properties": {"a": {"properties": {"b": {"type": "string"}}}}}, True),
        ({"properties": {"a": {"properties": {"b": {"title": "b"}}}}}, False),
        ({"properties": {"a": {"const": {}}}}, True),
        ({"properties": {"a": {"enum": [{}]}}}, True),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}}, True),
        ({"allOf": [{"properties": {"a": {"additionalProperties": {"maximum": 1}}}}]}, True),
        ({"not": {"properties": {"a": {"properties": {"b": {"maximum": 1}}}}}}, True),
        (
            {"if": {"properties": {"c": {}}}, "then": {"properties": {"a": {"type": "object"}}}},
            False,
        ),
        ({"patternProperties": {"a": {"const": 1}}}, True),
        ({"unevaluatedProperties": {"properties": {"b": {"const": 1}}}}, True),
    ],
)
def test_a_rule_looks_at_a_part_or_not(schema: Any, looks: bool) -> None:
    assert looks_at(schema, ("a", "b")) is looks


def test_a_rule_looks_at_the_items_of_a_list() -> None:
    for keyword in ("items", "contains", "unevaluatedItems"):
        assert looks_at({"properties": {"a": {keyword: {"maximum": 1}}}}, ("a", 3))
        assert not looks_at({"properties": {"a": {keyword: {"required": ["x"]}}}}, ("a", 3, "b"))
    assert looks_at({"properties": {"a": {"prefixItems": [{}, {"maximum": 1}]}}}, ("a", 1))
    assert looks_at({"properties": {"a": {"uniqueItems": True}}}, ("a", 1))
    assert not looks_at({"properties": {"a": {"maxItems": 1}}}, ("a", 1))
