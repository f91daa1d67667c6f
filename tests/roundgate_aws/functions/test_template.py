"""`template.yaml` and the code agree: the table, the settings, and each call of AWS
that a function makes."""

from __future__ import annotations

import json
import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import pytest

from roundgate.settings.process import Settings, from_environment
from roundgate_aws import packaging
from roundgate_aws import worker as lambda_worker
from roundgate_aws.parts import assembled
from roundgate_aws.stack import rest_api
from roundgate_aws.stack.events import INTEGRATION_S
from roundgate_aws.stack.stack import EXECUTIONS, rate_s
from roundgate_aws.template import StackTemplate
from tests.support import permissions
from tests.support.dynamodb import ROOT
from tests.support.expanded import expanded, resources
from tests.support.permissions import KNOWN


@pytest.fixture(scope="module")
def template() -> StackTemplate:
    return StackTemplate({}, KNOWN)


@pytest.fixture(scope="module")
def deployed() -> StackTemplate:
    """The same as CloudFormation gets it."""
    return permissions.deployed()


OF_DEPLOYED_TABLES = {"DeletionProtectionEnabled", "SSESpecification"}


def test_the_table_is_the_one_that_is_documented(template: StackTemplate) -> None:
    table = {
        name: one
        for name, one in template.properties("Table").items()
        if name not in OF_DEPLOYED_TABLES
    }
    assert table == json.loads((ROOT / "infra/table.json").read_text())


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_the_environment_of_a_function_is_one_that_it_takes(
    template: StackTemplate, name: str
) -> None:
    function = template.function(name)
    using = from_environment({**function.environment, "AWS_LAMBDA_FUNCTION_NAME": name})
    assert using.store == "dynamodb://tasks"
    assert using.sqs_url == KNOWN["Queue"]
    assert str(using.config) == "gateway.json"
    unknown = [
        name
        for name in function.environment
        if name.removeprefix("GATEWAY_").lower() not in Settings.__struct_fields__
    ]
    assert unknown == []


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_a_handler_is_where_the_template_says(template: StackTemplate, name: str) -> None:
    module, _, attribute = template.function(name).handler.rpartition(".")
    source = (ROOT / "app" / (module.replace(".", "/") + ".py")).read_text()
    assert f'name != "{attribute}"' in source


# What a deployment makes, and what it leaves alone


def outputs(**parameters: str) -> dict[str, str]:
    own = StackTemplate(parameters, KNOWN)
    return {name: own.value(one["Value"]) for name, one in own.source["Outputs"].items()}


API = "https://a1b2c3d4e5.execute-api.eu-central-1.amazonaws.com"


@pytest.mark.parametrize(
    ("parameters", "base"),
    [
        ({}, API),
        ({"StageName": "prod"}, f"{API}/prod"),
        ({"PublicUrl": "https://mcp.example.com"}, "https://mcp.example.com"),
        (
            {"PublicUrl": "https://example.com/tools", "StageName": "prod"},
            "https://example.com/tools",
        ),
        ({"DomainName": "mcp.example.com"}, "https://mcp.example.com"),
        ({"DomainName": "mcp.example.com", "StageName": "prod"}, "https://mcp.example.com"),
        (
            {"DomainName": "origin.example.com", "PublicUrl": "https://mcp.example.com"},
            "https://mcp.example.com",
        ),
    ],
    ids=[
        "default",
        "named stage",
        "public URL",
        "public URL with a base path",
        "domain",
        "domain of a named stage",
        "a proxy in front of the domain",
    ],
)
def test_the_endpoint_and_the_public_url_are_where_the_api_is_found(
    parameters: dict[str, str], base: str
) -> None:
    own = StackTemplate(parameters, KNOWN)
    assert outputs(**parameters)["Endpoint"] == f"{base}/mcp"
    assert own.function("GatewayFunction").environment["GATEWAY_PUBLIC_URL"] == base


@pytest.mark.parametrize(
    ("parameters", "is_off"),
    [
        ({}, False),
        ({"PublicUrl": "https://mcp.example.com"}, True),
        ({"PublicUrl": "https://mcp.example.com", "ApiEndpoint": "enabled"}, False),
        ({"ApiEndpoint": "disabled"}, True),
        ({"DomainName": "mcp.example.com"}, True),
        ({"DomainName": "mcp.example.com", "ApiEndpoint": "enabled"}, False),
    ],
    ids=["no domain", "public URL", "behind a CDN", "wanted", "domain", "domain and CDN"],
)
def test_nobody_goes_around_a_domain_unless_that_is_wanted(
    parameters: dict[str, str], is_off: bool
) -> None:
    own = StackTemplate(parameters, KNOWN)
    assert own.properties("Api")["DisableExecuteApiEndpoint"] is is_off


def test_every_route_reaches_the_function_and_may(deployed: StackTemplate) -> None:
    for name in deployed.named("AWS::ApiGatewayV2::Route"):
        assert deployed.properties(name)["Target"] == "integrations/unknown:ApiIntegration"
    assert set(deployed.routes()) == {
        ("$default", ""),
        ("GET", "/healthz"),
        ("GET", "/.well-known/{document+}"),
        ("OPTIONS", "/{path+}"),
        ("POST", "/events/{token}"),
    }
    (gateways,) = (
        one
        for one in map(deployed.properties, deployed.named("AWS::Lambda::Permission"))
        if one["Principal"] == "apigateway.amazonaws.com"
    )
    arn = "arn:aws:execute-api:eu-central-1:123456789012:a1b2c3d4e5/prod/GET/.well-known/oauth-protected-resource"
    assert fnmatchcase(arn, gateways["SourceArn"])


def test_the_table_is_protected_unless_that_is_not_wanted() -> None:
    for value, is_protected in (("true", True), ("false", False)):
        table = StackTemplate({"ProtectTable": value}, KNOWN).properties("Table")
        assert table["DeletionProtectionEnabled"] is is_protected


def test_encryption_is_the_free_one_unless_the_other_is_asked_for() -> None:
    for value, costs in (("aws-owned", False), ("aws-managed", True)):
        table = StackTemplate({"TableEncryption": value}, KNOWN).properties("Table")
        assert table["SSESpecification"] == {"SSEEnabled": costs}


def test_what_everybody_may_call_is_said_by_the_deployment(template: StackTemplate) -> None:
    assert template.function("GatewayFunction").environment["GATEWAY_ALLOW_ANONYMOUS"] == "false"
    own = StackTemplate({"AllowAnonymous": "true"}, KNOWN)
    assert from_environment(own.function("GatewayFunction").environment).allow_anonymous


def test_a_new_account_has_executions_left_for_the_gateway_and_the_sweep(
    template: StackTemplate,
) -> None:
    mapping = template.function("WorkerFunction").events["Tasks"]["Properties"]
    assert mapping["ScalingConfig"]["MaximumConcurrency"] <= EXECUTIONS // 2
    reserved = [
        name for name in template.named("AWS::Serverless::Function") if _reserves(template, name)
    ]
    assert reserved == [], "an account with 10 executions may reserve none"


def _reserves(template: StackTemplate, name: str) -> bool:
    return "ReservedConcurrentExecutions" in template.properties(name)


# A domain, an authorizer, a network, snapshots: parameters


def there(**parameters: str) -> dict[str, Any]:
    """The properties of the resources that a deployment with these parameters has."""
    made = resources(expanded(parameters.get("ApiType", "http")), parameters, KNOWN)
    return {name: one.get("Properties", {}) for name, one in made.items()}


DOMAIN = {"DomainName": "mcp.example.com", "CertificateArn": "arn:certificate"}


def test_a_domain_is_mapped_to_the_stage_and_its_zone_gets_both_records() -> None:
    assert not there().keys() & {"Domain", "DomainMapping", "DomainRecords"}
    without_zone = there(**DOMAIN)
    assert "DomainRecords" not in without_zone
    (configuration,) = without_zone["Domain"]["DomainNameConfigurations"]
    assert configuration["CertificateArn"] == "arn:certificate"
    assert configuration["IpAddressType"] == "dualstack", "an AAAA record leads nowhere else"
    assert without_zone["DomainMapping"]["Stage"] == "unknown:ApiStage"
    records = there(**DOMAIN, HostedZoneId="Z1")["DomainRecords"]
    assert [one["Type"] for one in records["RecordSets"]] == ["A", "AAAA"]
    for record in records["RecordSets"]:
        assert record["Name"] == "mcp.example.com"
        assert record["AliasTarget"] == {
            "DNSName": "unknown:Domain.RegionalDomainName",
            "HostedZoneId": "unknown:Domain.RegionalHostedZoneId",
        }


def test_an_authorizer_stands_in_front_of_the_endpoints_and_of_nothing_else() -> None:
    open_to_all = there()
    assert "Authorizer" not in open_to_all
    assert open_to_all["DefaultRoute"]["AuthorizationType"] == "NONE"
    made = there(AuthorizerIssuer="https://issuer.example", AuthorizerAudience="a,b")
    assert made["Authorizer"]["JwtConfiguration"] == {
        "Issuer": "https://issuer.example",
        "Audience": ["a", "b"],
    }
    guarded = {
        name for name, one in made.items() if one.get("AuthorizerId") == "unknown:Authorizer"
    }
    assert guarded == {"DefaultRoute"}
    assert made["DefaultRoute"]["AuthorizationType"] == "JWT"
    asked_first = {one["RouteKey"] for name, one in made.items() if name.endswith("PreflightRoute")}
    assert asked_first == {"OPTIONS /{path+}"}, "browsers send no token there"


def test_how_many_requests_the_api_takes_is_a_parameter() -> None:
    usual = there()["ApiStage"]["DefaultRouteSettings"]
    assert usual == {"ThrottlingRateLimit": 1000, "ThrottlingBurstLimit": 2000}
    other = there(RequestRate="5000", RequestBurst="4000")["ApiStage"]["DefaultRouteSettings"]
    assert other == {"ThrottlingRateLimit": "5000", "ThrottlingBurstLimit": "4000"}


def test_refused_requests_are_counted_by_the_line_that_the_api_writes_of_them() -> None:
    made = there()
    line = json.loads(made["ApiStage"]["AccessLogSettings"]["Format"])
    counted = made["ThrottledRequests"]
    (metric,) = counted["MetricTransformations"]
    assert counted["FilterPattern"] == '{ $.status = "429" }'
    assert line["status"] == "$context.status"
    (dimension,) = metric["Dimensions"]
    assert line[dimension["Value"].removeprefix("$.")] == "$context.apiId"


def test_a_line_of_the_api_leads_to_the_lines_of_the_function_and_has_no_secret() -> None:
    """The path of an external event has its token, so no line has a path."""
    line = json.loads(there()["ApiStage"]["AccessLogSettings"]["Format"])
    ids = {"api_request": "$context.requestId", "lambda_request": "$context.integration.requestId"}
    assert line.items() >= ids.items()
    documented = (ROOT / "docs/observability.md").read_text("utf-8")
    assert all(f"`{name}`" in documented for name in ids)
    assert line["method"] == "$context.httpMethod"
    assert line["route"] == "$context.routeKey"
    assert line["authorizer"] == "$context.authorizer.error"
    assert not {"$context.path", "$context.rawPath"} & set(line.values())
    assert not any("claims" in value for value in line.values())


# A REST API


REST = {"ApiType": "rest"}


def test_one_kind_of_api_is_there_with_the_same_routes() -> None:
    usual, made = there(), there(**REST)
    assert not [name for name in usual if name.startswith("Rest")]
    assert not [name for name in made if name in ("Api", "ApiStage", "ApiLog", "DefaultRoute")]
    methods = rest_api.methods(permissions.deployed(**REST))
    routes = {(one.verb, one.path) for one in methods}
    assert routes == {
        ("ANY", "/{path+}"),
        ("GET", "/healthz"),
        ("GET", "/.well-known/{document+}"),
        ("OPTIONS", "/{path+}"),
        ("OPTIONS", "/.well-known/{document+}"),
        ("POST", "/events/{token}"),
    }
    assert [one.path for one in methods if one.is_guarded] == ["/{path+}"]
    opened = rest_api.methods(permissions.deployed(**REST, AllowAnonymous="true"))
    assert not any(one.is_guarded for one in opened)


def test_each_method_of_a_rest_api_streams_what_the_function_streams() -> None:
    made = there(**REST)
    for one in made.values():
        if "HttpMethod" in one:
            assert one["Integration"] == {
                "Type": "AWS_PROXY",
                "IntegrationHttpMethod": "POST",
                "ResponseTransferMode": "STREAM",
                "TimeoutInMillis": 900_000,
                "Uri": "arn:aws:apigateway:eu-central-1:lambda:path/2021-11-15/functions/"
                "unknown:GatewayFunction.Arn/response-streaming-invocations",
            }
    variables = made["GatewayFunction"]["Environment"]["Variables"]
    assert variables["AWS_LAMBDA_EXEC_WRAPPER"] == f"/var/task/{packaging.STREAM}"
    assert made["GatewayFunction"]["Timeout"] == 300
    assert "AWS_LAMBDA_EXEC_WRAPPER" not in there()["GatewayFunction"]["Environment"]["Variables"]


def test_a_deployment_is_made_of_everything_that_it_shows() -> None:
    source = permissions.deployed(**REST).source["Resources"]
    shown = {
        name
        for name, one in source.items()
        if one["Type"] in ("AWS::ApiGateway::Method", "AWS::ApiGateway::GatewayResponse")
    }
    assert {*source["RestDeployment"]["DependsOn"]} == shown | {"ApiPermission"}


def test_the_stage_of_a_rest_api_has_a_name_and_limits_of_its_own() -> None:
    stage = there(**REST)["RestStage"]
    assert stage["StageName"] == "live"
    assert there(**REST, StageName="prod")["RestStage"]["StageName"] == "prod"
    (limits,) = stage["MethodSettings"]
    assert (limits["ThrottlingRateLimit"], limits["ThrottlingBurstLimit"]) == (1000, 2000)
    mapping = there(**REST, **DOMAIN)["DomainMapping"]
    assert (mapping["ApiId"], mapping["Stage"]) == ("f6g7h8i9j0", "unknown:RestStage")


REST_API = "https://f6g7h8i9j0.execute-api.eu-central-1.amazonaws.com"


@pytest.mark.parametrize(
    ("parameters", "base"),
    [
        ({}, f"{REST_API}/live"),
        ({"StageName": "prod"}, f"{REST_API}/prod"),
        ({"PublicUrl": "https://example.com/tools"}, "https://example.com/tools"),
        (DOMAIN, "https://mcp.example.com"),
    ],
    ids=["default", "named stage", "public URL", "domain"],
)
def test_what_a_rest_api_refuses_names_the_metadata_of_the_endpoint(
    parameters: dict[str, str], base: str
) -> None:
    made = there(**REST, **parameters)
    at = f'resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
    header = "gatewayresponse.header.WWW-Authenticate"
    for name, kind, challenge in (
        ("RestNoToken", "UNAUTHORIZED", f"'Bearer {at}'"),
        ("RestBadToken", "ACCESS_DENIED", f"'Bearer error=\"invalid_token\", {at}'"),
    ):
        assert made[name]["ResponseType"] == kind
        assert made[name]["StatusCode"] == "401"
        assert made[name]["ResponseParameters"][header] == challenge
    assert outputs(**REST, **parameters)["Endpoint"] == f"{base}/mcp"
    assert made["RestAuthorizer"]["IdentitySource"] == "method.request.header.Authorization"
    for kind in ("RestNoToken", "RestBadToken", "RestClientErrors", "RestServerErrors"):
        headers = made[kind]["ResponseParameters"]
        assert headers["gatewayresponse.header.Access-Control-Allow-Origin"] == "'*'"


def test_a_rest_api_has_no_parameters_that_it_cannot_use() -> None:
    http, rest = assembled("http")["Parameters"], assembled("rest")["Parameters"]
    only_http = {"AuthorizerIssuer", "AuthorizerAudience", "GatewayTimeout", "AlarmTimeoutPercent"}
    assert http.keys() - rest.keys() == only_http
    assert rest.keys() - http.keys() == {"StreamTimeout", "VpcEndpointIds", "WebAclArn"}
    assert rest["SnapStart"]["AllowedValues"] == ["off"]


@pytest.mark.parametrize(("api", "other"), [("http", "rest"), ("rest", "http")])
def test_a_template_refuses_the_other_kind_of_api(api: str, other: str) -> None:
    for chosen, is_fine in ((api, True), (other, False)):
        own = StackTemplate({"ApiType": chosen}, KNOWN, assembled(api))
        (assertion,) = own.source["Rules"]["HasTheApi"]["Assertions"]
        assert own.holds(assertion["Assert"]) is is_fine


IN_A_NETWORK = {"SubnetIds": "subnet-1,subnet-2", "SecurityGroupIds": "sg-1"}


@pytest.mark.parametrize("name", ["Gateway", "Worker"])
def test_a_function_in_a_network_has_interfaces_there_that_its_code_cannot_touch(name: str) -> None:
    assert "VpcConfig" not in there()[f"{name}Function"]
    made = there(**IN_A_NETWORK)
    assert made[f"{name}Function"]["VpcConfig"] == {
        "SubnetIds": ["subnet-1", "subnet-2"],
        "SecurityGroupIds": ["sg-1"],
    }
    (policy,) = made[f"{name}Role"]["Policies"]
    allowed, denied = policy["PolicyDocument"]["Statement"][-2:]
    assert (allowed["Effect"], denied["Effect"]) == ("Allow", "Deny")
    assert allowed["Action"] == denied["Action"]
    assert {one.partition(":")[0] for one in allowed["Action"]} == {"ec2"}
    assert denied["Condition"] == {"Null": {"lambda:SourceFunctionArn": "false"}}
    assert "VpcConfig" not in made["RotationFunction"], "it talks to Secrets Manager alone"


def test_with_snapstart_the_api_calls_a_version_that_release_names() -> None:
    plain = there()
    assert not plain.keys() & {"GatewayVersion", "GatewayAlias"}
    assert plain["GatewayFunction"]["SnapStart"] == {"ApplyOn": "None"}
    assert plain["ApiIntegration"]["IntegrationUri"] == "unknown:GatewayFunction.Arn"
    made = there(SnapStart="on", Release="r1")
    assert made["GatewayFunction"]["SnapStart"] == {"ApplyOn": "PublishedVersions"}
    assert made["GatewayVersion"]["Description"] == "r1"
    assert made["GatewayFunction"]["Description"] == "r1", "AWS refuses a version without a change"
    assert made["GatewayAlias"] == {
        "FunctionName": "unknown:GatewayFunction",
        "FunctionVersion": "unknown:GatewayVersion.Version",
        "Name": "live",
    }
    for name, key in (("ApiIntegration", "IntegrationUri"), ("ApiPermission", "FunctionName")):
        assert made[name][key] == "unknown:GatewayAlias"


def test_the_api_is_never_sent_to_what_it_may_not_call_yet(deployed: StackTemplate) -> None:
    assert deployed.source["Resources"]["ApiIntegration"]["DependsOn"] == "ApiPermission"


def test_a_message_is_hidden_for_six_times_as_long_as_its_worker_may_take(
    template: StackTemplate,
) -> None:
    declared = template.source["Parameters"]["WorkerTimeout"]["AllowedValues"]
    assert template.source["Mappings"]["HiddenFor"].keys() == {*declared}
    for timeout in declared:
        own = StackTemplate({"WorkerTimeout": timeout}, KNOWN)
        assert own.function("WorkerFunction").timeout_s == int(timeout)
        assert own.properties("Queue")["VisibilityTimeout"] == 6 * int(timeout)
    assert min(map(int, declared)) * 1000 > lambda_worker.SWEEP_MS + lambda_worker.MARGIN_MS


def test_no_time_out_of_the_gateway_reaches_that_of_the_api(template: StackTemplate) -> None:
    declared = template.source["Parameters"]["GatewayTimeout"]
    assert template.function("GatewayFunction").timeout_s <= declared["MaxValue"] < INTEGRATION_S
    own = StackTemplate({"GatewayTimeout": 5}, KNOWN)
    assert own.function("GatewayFunction").timeout_s == declared["MinValue"] == 5


ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def test_the_documented_parameters_are_those_of_the_template_with_their_defaults() -> None:
    declared = {**assembled("rest")["Parameters"], **assembled("http")["Parameters"]}
    text = (ROOT / "docs/deploy.md").read_text("utf-8")
    table = text.partition("| parameter | default | meaning |")[2].partition("\n\n")[0]
    rows = {tuple(re.findall(r"\w+", names)): said for names, said in ROW.findall(table)}
    assert sorted(name for names in rows for name in names) == sorted(declared)
    for names, said in rows.items():
        told = said.split(", ") if said.count(", ") + 1 == len(names) else [said] * len(names)
        for name, one in zip(names, told, strict=True):
            default = str(declared[name]["Default"])
            if default in ("", "none", "0"):
                assert one == "none" or " " in one, name
            elif " " not in one:
                assert one.strip("`") == default, name


def test_the_documented_times_of_a_worker_are_those_that_there_are(template: StackTemplate) -> None:
    text = (ROOT / "docs/deploy.md").read_text("utf-8")
    (told,) = re.findall(r"`WorkerTimeout` is one of ([\d, and]+) s", text)
    assert (
        re.findall(r"\d+", told) == template.source["Parameters"]["WorkerTimeout"]["AllowedValues"]
    )


@pytest.mark.parametrize("api", ["http", "rest"])
def test_each_parameter_is_in_one_group_of_the_console(api: str) -> None:
    source = assembled(api)
    groups = source["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    shown = [name for group in groups for name in group["Parameters"]]
    assert sorted(shown) == sorted(source["Parameters"])


# What invokes the worker


def test_a_chain_of_sleeps_is_no_loop_to_be_stopped(deployed: StackTemplate) -> None:
    assert deployed.properties("WorkerFunction")["RecursiveLoop"] == "Allow"


def test_a_sweep_is_over_before_the_next_and_is_neither_late_nor_repeated(
    deployed: StackTemplate,
) -> None:
    rules = list(map(deployed.properties, deployed.named("AWS::Events::Rule")))
    for rule in rules:
        assert rate_s(rule["ScheduleExpression"]) * 1000 > lambda_worker.SWEEP_MS
        assert rule["Targets"][0]["RetryPolicy"] == {
            "MaximumEventAgeInSeconds": 60,
            "MaximumRetryAttempts": 0,
        }
    states = Counter(rule.get("State", "ENABLED") for rule in rules)
    assert states == {"ENABLED": 1, "DISABLED": 3}, "further sweepers are asked for"
    (asynchronous,) = map(deployed.properties, deployed.named("AWS::Lambda::EventInvokeConfig"))
    assert asynchronous["MaximumRetryAttempts"] == 0
    assert asynchronous["MaximumEventAgeInSeconds"] <= 60


def test_further_sweepers_are_invocations_of_their_own_which_share_the_shards() -> None:
    """Each takes shards that no other has (`tasks.sweep`), so four rules are four targets."""
    four = permissions.deployed(Sweepers="4")
    rules = list(map(four.properties, four.named("AWS::Events::Rule")))
    assert [rule.get("State", "ENABLED") for rule in rules] == ["ENABLED"] * 4
    (target,) = {json.dumps(rule["Targets"][0]["Arn"]) for rule in rules}
    assert target == '"unknown:WorkerFunction.Arn"'
    assert {rule["Targets"][0]["Input"] for rule in rules} == {'{"task": "sweep"}'}
    callers = [
        permission["SourceArn"]
        for permission in map(four.properties, four.named("AWS::Lambda::Permission"))
        if permission["Principal"] == "events.amazonaws.com"
    ]
    assert len(set(callers)) == 4


def test_the_event_source_delivers_messages_alone_and_knows_of_partial_failures(
    template: StackTemplate,
) -> None:
    source = template.function("WorkerFunction").events["Tasks"]["Properties"]
    assert source["BatchSize"] == 1
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert template.properties("Queue")["RedrivePolicy"]["maxReceiveCount"] >= 5


# What the code calls, and what the functions may


def test_the_gateway_may_do_what_it_does_and_nothing_more(deployed: StackTemplate) -> None:
    needed = permissions.of_stores(permissions.GATEWAY) | permissions.of_module(
        "app/roundgate/tokens/keys.py", "decrypt"
    )
    assert permissions.allowed(deployed, "GatewayFunction") == needed


def test_the_worker_may_do_what_it_does_and_nothing_more(deployed: StackTemplate) -> None:
    needed = permissions.of_stores(permissions.WORKER) | permissions.OF_THE_MAPPING
    needed |= permissions.of_module("app/roundgate/tokens/keys.py", "decrypt")  # tokens of events
    assert permissions.allowed(deployed, "WorkerFunction") == needed


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_the_functions_of_tools_may_be_invoked_by_both_and_no_others(
    deployed: StackTemplate, name: str
) -> None:
    tools = permissions.deployed(FunctionArns="arn:f,arn:g:live", DurableFunctionArns="arn:f:*")
    more = permissions.allowed(tools, name) - permissions.allowed(deployed, name)
    # only a worker cleans up
    elsewhere = ["stop_durable_execution"] if name == "GatewayFunction" else []
    needed = {action for action, _ in permissions.of_module(permissions.INVOKING, *elsewhere)}
    assert {action for action, _ in more} == needed
    assert more == {
        ("lambda:InvokeFunction", "arn:f"),
        ("lambda:InvokeFunction", "arn:g:live"),
        ("lambda:GetDurableExecution", "arn:f:*"),
        *([] if elsewhere else [("lambda:StopDurableExecution", "arn:f:*")]),
    }


@pytest.mark.parametrize("name", ["GatewayFunction", "WorkerFunction"])
def test_secrets_of_services_may_be_read_by_both_and_no_others(
    deployed: StackTemplate, name: str
) -> None:
    given = permissions.deployed(SecretArns="arn:s-??????,arn:t", ParameterArns="arn:p")
    more = permissions.allowed(given, name) - permissions.allowed(deployed, name)
    assert {action for action, _ in more} == {
        action for action, _ in permissions.named_in(permissions.READING)
    }
    assert more == {
        ("secretsmanager:GetSecretValue", "arn:s-??????"),
        ("secretsmanager:GetSecretValue", "arn:t"),
        ("ssm:GetParameter", "arn:p"),
    }


def test_the_rotation_may_do_what_it_does_and_nothing_more(deployed: StackTemplate) -> None:
    needed = permissions.of_module("infra/rotation/rotate_keys.py")
    assert permissions.allowed(deployed, "RotationFunction") == needed


def test_no_role_may_do_anything_to_everything(deployed: StackTemplate) -> None:
    for name in deployed.named("AWS::IAM::Role"):
        document = json.dumps(deployed.properties(name)["Policies"])
        assert '"*"' not in document, name
        assert "unknown:" not in document, name


def test_no_function_gets_a_policy_that_nobody_wrote(deployed: StackTemplate) -> None:
    written = {"GatewayRole", "WorkerRole", "RotationRole"}
    assert set(deployed.named("AWS::IAM::Role")) == written
    assert deployed.named("AWS::IAM::Policy") == deployed.named("AWS::IAM::ManagedPolicy") == []


def test_queues_are_spoken_to_over_tls_only(deployed: StackTemplate) -> None:
    policy = deployed.properties("QueuePolicy")
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Action"], statement["Principal"]) == (
        "Deny",
        "sqs:*",
        "*",
    )
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    queues = deployed.named("AWS::SQS::Queue")
    assert len(policy["Queues"]) == len(statement["Resource"]) == len(queues) == 2


def test_every_module_that_uses_a_store_is_known_to_belong_to_a_function_or_to_none() -> None:
    assert permissions.users_of_stores() == {
        *permissions.GATEWAY,
        *permissions.WORKER,
        *permissions.SERVERS_ALONE,
        permissions.SENDS,
    }


@pytest.mark.parametrize(
    ("method", "does"),
    [
        ("create", {"dynamodb:PutItem", "dynamodb:BatchWriteItem", "sqs:SendMessage"}),
        ("read", {"dynamodb:Query"}),
        ("due", {"dynamodb:Query index"}),
        (
            "claim",
            {
                "dynamodb:GetItem",
                "dynamodb:UpdateItem",
                "dynamodb:BatchGetItem",
                "dynamodb:Query",
                "dynamodb:BatchWriteItem",
            },
        ),
        ("count_open", {"dynamodb:Query index"}),
        (
            "purge",
            {
                "dynamodb:GetItem",
                "dynamodb:DeleteItem",
                "dynamodb:Query",
                "dynamodb:BatchWriteItem",
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_read_from_the_code_is_what_it_does(method: str, does: set[str]) -> None:
    assert {
        f"{action}{' index' * (resource in permissions.INDEX.values())}"
        for action, resource in permissions.TASKS[method]
    } == does


def test_each_operation_of_aws_that_the_code_names_is_one_that_is_judged_here() -> None:
    of_development = {"create_table", "update_time_to_live"}
    assert permissions.named_operations() <= permissions.OPERATIONS.keys() | of_development
