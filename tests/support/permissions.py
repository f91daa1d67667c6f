"""What the functions may do at AWS, as `template.yaml` says, and what they do, as their code says.

A function's code calls methods of the stores, those call methods of the table, and those call
operations of boto3 by name. Each step is read from the syntax tree, so that a method nobody
calls asks for no permission.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeGuard

from roundgate_aws.template import StackTemplate
from tests.support.dynamodb import ROOT
from tests.support.expanded import expanded

Permission: TypeAlias = tuple[str, str]
"""An action and what it is done to."""

FUNCTIONS, EXECUTIONS = "arn:functions", "arn:functions:*"
TABLE, QUEUE, KEYS = "arn:table", "arn:queue", "arn:keys"
INDEX: Mapping[str, str] = {
    name: f"arn:table/index/{name.lower()}" for name in ("DUE", "OWNED", "ENDED")
}
"""By the name of the constant that has the index's name."""
LOGS = {f"{name}Log.Arn": f"arn:log/{name}" for name in ("Gateway", "Worker", "Rotation")}
KNOWN = {
    **LOGS,
    "Table": "tasks",
    "Table.Arn": TABLE,
    "Queue": "https://sqs.eu-central-1.amazonaws.com/123456789012/tasks",
    "Queue.Arn": QUEUE,
    "StateKeys": KEYS,
    "Api": "a1b2c3d4e5",
    "RestApi": "f6g7h8i9j0",
}
"""What stands for the template's resources here."""

OPERATIONS: Mapping[str, Permission] = {
    "batch_get_item": ("dynamodb:BatchGetItem", TABLE),
    "batch_write_item": ("dynamodb:BatchWriteItem", TABLE),
    "delete_item": ("dynamodb:DeleteItem", TABLE),
    "get_item": ("dynamodb:GetItem", TABLE),
    "put_item": ("dynamodb:PutItem", TABLE),
    "query": ("dynamodb:Query", TABLE),
    "scan": ("dynamodb:Scan", TABLE),
    "transact_write_items": ("dynamodb:TransactWriteItems", TABLE),
    "update_item": ("dynamodb:UpdateItem", TABLE),
    "change_message_visibility_batch": ("sqs:ChangeMessageVisibility", QUEUE),
    "delete_message_batch": ("sqs:DeleteMessage", QUEUE),
    "get_queue_attributes": ("sqs:GetQueueAttributes", QUEUE),
    "receive_message": ("sqs:ReceiveMessage", QUEUE),
    "send_message": ("sqs:SendMessage", QUEUE),
    "send_message_batch": ("sqs:SendMessage", QUEUE),
    "decrypt": ("kms:Decrypt", KEYS),
    "get_durable_execution": ("lambda:GetDurableExecution", EXECUTIONS),
    "stop_durable_execution": ("lambda:StopDurableExecution", EXECUTIONS),
    "get_parameter": ("ssm:GetParameter", "arn:parameters"),
    "invoke": ("lambda:InvokeFunction", FUNCTIONS),
    "describe_secret": ("secretsmanager:DescribeSecret", KEYS),
    "get_secret_value": ("secretsmanager:GetSecretValue", KEYS),
    "put_secret_value": ("secretsmanager:PutSecretValue", KEYS),
    "update_secret_version_stage": ("secretsmanager:UpdateSecretVersionStage", KEYS),
}
"""Each operation of boto3 that may occur in the code, and what it has to be allowed as."""

OF_THE_MAPPING = {
    (f"sqs:{action}", QUEUE) for action in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
}
"""What the event source mapping does in the worker's name."""

ACCOUNTS = "app/roundgate/storage/accounts.py"
"""What writes the rows of callers, in both functions."""
GATEWAY = (
    ACCOUNTS,
    "app/roundgate/methods/changes.py",
    "app/roundgate/methods/once.py",
    "app/roundgate/storage/ports.py",
    "app/roundgate/storage/rates.py",
    "app/roundgate/tasks/external.py",
    "app/roundgate/tasks/hidden.py",
    "app/roundgate/tasks/service.py",
)
WORKER = (
    ACCOUNTS,
    "app/roundgate/tasks/sweep.py",
    "app/roundgate/tasks/turn.py",
    "app/roundgate/tasks/worker.py",
)
INVOKING = "app/roundgate/backends/aws_lambda/invoking.py"
"""What invokes functions for tools, in both functions."""
READING = "app/roundgate/settings/references.py"
"""What reads secrets of credentials, in both functions."""
SERVERS_ALONE = (
    "app/roundgate/cli/tasks.py",
    "app/roundgate/operators/control.py",
    "app/roundgate_console/replicas.py",
    "app/roundgate_console/sessions.py",
    "app/roundgate_console/tasks.py",
    "app/roundgate/tasks/pool.py",
    "app/roundgate_testing/gateway.py",
)
"""What no function runs: the operator's command and console, workers that poll, and tests."""


SENDS = "app/roundgate/tasks/stored.py"
"""What sends messages for the others, and is counted as their use of the store."""


BEFORE_EACH = frozenset({"_call", "_do"})
"""The methods of the table that look at its version before its first operation."""


def deployed(**parameters: str) -> StackTemplate:
    """The expanded template, with what its resources are called here."""
    return StackTemplate(parameters, KNOWN, expanded(parameters.get("ApiType", "http")))


def allowed(template: StackTemplate, function: str) -> set[Permission]:
    """By all policies of a function's role, but for its own log; the template has to be
    expanded."""
    reference = template.source["Resources"][function]["Properties"]["Role"]
    role = template.properties(reference["Fn::GetAtt"][0])
    assert "ManagedPolicyArns" not in role, (
        "they are for every log group and every queue of the account"
    )
    found = {one for policy in role["Policies"] for one in _allowed(policy["PolicyDocument"])}
    log = LOGS[f"{function.removesuffix('Function')}Log.Arn"]
    of_log = {(action, log) for action in ("logs:CreateLogStream", "logs:PutLogEvents")}
    assert of_log <= found
    return found - of_log


def _allowed(document: Any) -> Iterator[Permission]:
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow"
        actions = statement["Action"]
        resources = statement["Resource"]
        for action in [actions] if isinstance(actions, str) else actions:
            for resource in resources if isinstance(resources, list) else [resources]:
                yield action, resource


def of_stores(modules: tuple[str, ...]) -> set[Permission]:
    """What modules do to task store, once store and queue."""
    uses = [use for module in modules for use in _uses(module)]
    found = [STORES[store].get(method, set()) for store, method in uses]
    return _TABLE["_has_my_version"].union(*found)


def of_module(path: str, *elsewhere: str) -> set[Permission]:
    """What a module does, whichever of its functions; `elsewhere` are operations of another way to set it up."""
    names = {node.attr for node in ast.walk(_parsed(path)) if isinstance(node, ast.Attribute)}
    return {OPERATIONS[name] for name in names & OPERATIONS.keys() - set(elsewhere)}


def named_in(path: str) -> set[Permission]:
    """What a module does by operations that it names as texts."""
    names = {node.value for node in ast.walk(_parsed(path)) if isinstance(node, ast.Constant)}
    return {does for name, does in OPERATIONS.items() if name in names}


def users_of_stores() -> set[str]:
    """The modules of app/ that call a method of a store."""
    modules = (str(path.relative_to(ROOT)) for path in (ROOT / "app").rglob("*.py"))
    return {
        module
        for module in modules
        if any(STORES[store].get(method) for store, method in _uses(module))
    }


def named_operations() -> set[str]:
    """Each operation of the services that the modules which hold clients name: an attribute, or a text on its own."""
    from botocore import xform_name
    from botocore.session import get_session

    models = [
        get_session().get_service_model(name)
        for name in ("dynamodb", "sqs", "secretsmanager", "kms", "lambda", "ssm")
    ]
    operations = {xform_name(name) for model in models for name in model.operation_names}
    found: set[str] = set()
    holders = [
        *(ROOT / "app/roundgate/storage").rglob("*.py"),
        ROOT / "app/roundgate/tokens/keys.py",
        ROOT / INVOKING,
        ROOT / READING,
        *(ROOT / "infra/rotation").glob("*.py"),
    ]
    for path in holders:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found.add(
                node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "value", ""))
            )
    return found & operations


def _uses(module: str) -> Iterator[tuple[str, str]]:
    """Store and method of each `self._store.method` and the like, and of what is called `queue`."""
    for node in ast.walk(_parsed(module)):
        match node:
            case ast.Attribute(
                attr=method,
                value=ast.Attribute(
                    attr="_store" | "store" | "_once" | "_queue" | "queue" | "_rows" as store
                ),
            ):
                yield f"_{store.removeprefix('_')}", method
            case ast.Attribute(attr=method, value=ast.Name("queue")):
                yield "_queue", method
            case ast.Attribute(
                attr=method, value=ast.Attribute(value=ast.Name("stores"), attr=name)
            ):
                if name != "facts":
                    yield {"tasks": "_store", "once": "_once", "queue": "_queue"}[name], method


def _methods(
    path: str, name: str, under: Mapping[str, set[Permission]]
) -> dict[str, set[Permission]]:
    """What each method of a class does, itself, through `self`, or through the `_table`,
    `_rows`, `store` or `_queue` under it."""
    (found,) = (
        node for node in _parsed(path).body if isinstance(node, ast.ClassDef) and node.name == name
    )
    bodies = {
        node.name: node
        for node in found.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return {method: _does(method, bodies, under, {method}) for method in bodies}


def _does(
    method: str, bodies: Mapping[str, ast.AST], under: Mapping[str, set[Permission]], seen: set[str]
) -> set[Permission]:
    found: set[Permission] = set()
    index: str | None = None
    for node in ast.walk(bodies[method]):
        match node:
            case ast.Name(id=name) if name in INDEX:
                index = INDEX[name]
            # by name, as in call("query", …); a comparison with a name calls nothing
            case ast.Call(args=arguments):
                found |= {OPERATIONS[str(one.value)] for one in arguments if _is_operation(one)}
            case ast.Attribute(attr=name, value=ast.Name("client")) if name in OPERATIONS:
                found.add(OPERATIONS[name])
            case ast.Attribute(attr=name, value=ast.Name("self")) if (
                name in bodies and name not in seen and name not in BEFORE_EACH
            ):
                found |= _does(name, bodies, under, seen | {name})
            case ast.Attribute(
                attr=name,
                value=ast.Attribute(attr="_table" | "_rows" | "store" | "queue" | "_queue"),
            ):
                found |= under.get(name, set())
    return {(action, index or resource) for action, resource in found}


def _is_operation(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and node.value in OPERATIONS


def _parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


_TABLE = _methods("app/roundgate/storage/dynamodb/table.py", "Table", {})
_TASKS = _methods("app/roundgate/storage/dynamodb/tasks.py", "DynamoDbTasks", _TABLE)
_ROWS = _methods("app/roundgate/storage/dynamodb/sessions.py", "DynamoDbSessions", _TABLE)
_QUEUE = _methods("app/roundgate/storage/sqs.py", "SqsQueue", {})
_SENDING = {name: _QUEUE[name] for name in ("send", "send_many")}
TASKS = _methods("app/roundgate/tasks/stored.py", "StoredTasks", {**_TASKS, **_SENDING})
STORES: Mapping[str, Mapping[str, set[Permission]]] = {
    "_store": TASKS,
    "_once": _methods("app/roundgate/storage/ports.py", "OnceStore", _ROWS),
    "_queue": _QUEUE,
    "_rows": _ROWS,
}
"""What the methods of the stores do, by the attribute that has the store."""
