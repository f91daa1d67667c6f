"""All exceptions that `roundgate` raises on purpose. None is defined outside of this package;
import them from here.

The package imports only the standard library. Each file has a theme: `requests`, `tools`,
`handlers`, `configuration`, `client`, and `inside` for errors that never leave the gateway.

    RoundgateError
    ├── GatewayError                      what a call, a task or a start can end with
    │   ├── ProtocolError                 the request is at fault; answered as a JSON-RPC error
    │   │   ├── ParseError                the body is not the JSON we accept
    │   │   ├── InvalidRequest            JSON, but not one JSON-RPC request or notification
    │   │   ├── MethodNotFound            a method that this server does not serve
    │   │   ├── InvalidParams             params or `_meta` have the wrong shape, or name something that does not exist
    │   │   │   ├── ResourceNotFound      no resource has the URI
    │   │   │   ├── StateRefused          a requestState that is not taken: one sentence, whatever the reason
    │   │   │   └── TaskNotFound          no task of the caller's has the id: one sentence, whatever the reason
    │   │   ├── HeaderMismatch            a header is missing, malformed, or disagrees with the body
    │   │   ├── MissingCapability         the client did not declare a capability that the call needs
    │   │   └── UnsupportedVersion        a protocol revision that this server does not speak
    │   ├── TransportError                refused before JSON-RPC: Host, Origin, media type, size, HTTP method
    │   │   └── SessionNotFound           404: no session of the caller's has the id: one sentence, whatever the reason
    │   ├── Unavailable                   not now: a store, a queue or a place that is needed cannot be had
    │   │   └── StoreAway                 the rows of sessions: a client may come back for its call
    │   ├── AuthError                     answered in OAuth's words (RFC 6750), not as JSON-RPC
    │   │   ├── Unauthenticated           401: no token, or none that holds
    │   │   └── InsufficientScope         403: the token's scopes do not cover the call
    │   ├── InternalError                 our own fault, or a handler's where the protocol has no tool error
    │   ├── ToolError                     a tool's own failure: a result with `isError`, not a JSON-RPC error
    │   │   ├── BackendError              what the service behind a tool did wrong
    │   │   │   ├── FunctionAway          a function of AWS Lambda cannot be invoked just now, or has not answered
    │   │   │   ├── FunctionFailed        a function of AWS Lambda ended with an error of its own
    │   │   │   ├── JobLeft               its job is no longer followed and may still be running
    │   │   │   ├── NoAnswer              it gave none, or not a whole one
    │   │   │   ├── TokenRefused          its authorization server gave the gateway no token
    │   │   │   └── UnexpectedAnswer      its answer is not what was promised
    │   │   ├── CallTimeout               the call outlived its deadline
    │   │   ├── OutcomeUnknown            an `at_most_once` step was begun, and whoever ran it died
    │   │   ├── TaskTimeout               a task took longer than a task may
    │   │   └── Declined                  the user declined a question or dismissed it
    │   ├── NotJson                       a handler had something remembered that JSON cannot hold
    │   ├── NondeterminismError           a handler went another way than when what is remembered was
    │   ├── StateTooLarge                 a handler had more remembered than may travel
    │   ├── LeaseLost                     a task is no longer this worker's to write to
    │   ├── ConfigError                   gateway.yaml or the environment is wrong; carries every problem found
    │   │   └── VersionsConflict          no versions of packages satisfy everybody who wants some
    │   ├── UsageError                    what was said on the command line, or in a file that it names, cannot be used
    │   └── ClientError                   what `roundgate.client` raises: a server could not be used as was asked
    │       ├── ConnectionLost            no connection, or it ended before the answer was whole
    │       ├── TimedOut                  no answer within the time that was given
    │       ├── HttpRefused               an HTTP status without a JSON-RPC message
    │       │   └── AuthorizationFailed   no access: no credentials, none that are taken, or a login that went wrong
    │       ├── BadAnswer                 the server sent something that the protocol does not allow, or too much
    │       ├── RpcError                  the server answered with a JSON-RPC error
    │       ├── NoCommonVersion           client and server share no revision of the protocol
    │       ├── Unanswered                the server asks, and nothing that was given answers
    │       ├── AnswerInvalid             an answer that was given does not fit its question
    │       ├── TooManyRounds             the server asks more often than it may
    │       ├── TaskEnded                 a task ended without a result: failed, or cancelled
    │       └── WrongHandle               a task's handle that is malformed, or is another server's
    ├── StepFailed                        a step raised: what the handler sees, now and in every replay
    │   └── StepTimeout                   a step was not over within its `timeout_s`
    ├── Diverged                          `roundgate.testing`: a handler does not survive the death of its process
    ├── NothingGoesOn                     `roundgate.testing`: what is waited for will never come
    └── Inside                            raised and caught within the gateway; no client sees one
        ├── AnswerTooLarge                a service's answer has more bytes than it may
        ├── CallCancelled                 a client of an older revision has cancelled its call
        ├── CleanedUp                     what a call had begun elsewhere was ended, or there is nothing to end
        ├── InvocationFailed              a function of the local stack raised, timed out, or its process died
        │   ├── PayloadTooLarge           its event is larger than AWS Lambda takes
        │   └── Throttled                 as many functions run there as may run at once
        ├── KeysUnavailable               the keys of an issuer have never been read
        ├── NotCancelled                  a service did not accept the cancel of a job
        ├── NotNow                        a service's job cannot be asked for just now
        ├── NotRetryable                  a call that a failed step ended cannot be retried there
        ├── NotServedHere                 this worker cannot serve a task, another may
        ├── OAuthRefused                  an authorization server's answer that is no success
        ├── RequestMalformed              a request that a stand-in or a recording proxy does not take
        ├── SealBroken                    a token that cannot be opened
        ├── SessionOver                   an older server has forgotten the client's session
        ├── TaskGivenUp                   a task fails now, whatever its handler would do
        ├── TryLater                      a server said that it cannot answer its client now
        ├── UnboundPlaceholder            a placeholder of a cassette that stands for nothing yet
        ├── Unconfirmed                   a reload would remove protection, and has been read only once
        ├── UnfitAnswer                   a response does not fit the question that was asked
        ├── UnknownEncoding               a service's answer is packed in a way that was not asked for
        ├── UnreadableDocument            a document of OpenAPI cannot be had
        ├── UnresolvedReference           a `${…}` in the configuration leads to nothing, or is none
        ├── UnusableIndex                 a compiled index that is none of ours, not whole, or of something else
        │   └── IndexOfAnotherVersion     one that another version of Roundgate has written
        ├── UnusableOperation             an operation of OpenAPI that cannot be offered as a tool
        │   └── DanglingReference         a `$ref` has no target, or one that may not be read
        ├── UnusableReturn                a handler returned what has no JSON, or does not conform to its schema
        ├── WorkerFault                   a fault of the worker rather than of the tool
        └── YamlTooCostly                 a YAML text takes more time or memory to read than allowed

    Suspend                               a `BaseException`, because no handler must catch it: ends a run for now

Classes carry facts, never codes: a revision's `wire_errors` knows JSON-RPC codes and the statuses
that go with them. What HTTP itself refuses (`TransportError`, `AuthError`) knows its status;
nothing else knows of HTTP. The text of a `ProtocolError`, `TransportError` or `ToolError` is said
to the caller, so it must not hold secrets.
"""

from roundgate.errors.base import GatewayError as GatewayError
from roundgate.errors.base import Inside as Inside
from roundgate.errors.base import RoundgateError as RoundgateError
from roundgate.errors.client import AnswerInvalid as AnswerInvalid
from roundgate.errors.client import AuthorizationFailed as AuthorizationFailed
from roundgate.errors.client import BadAnswer as BadAnswer
from roundgate.errors.client import ClientError as ClientError
from roundgate.errors.client import ConnectionLost as ConnectionLost
from roundgate.errors.client import HttpRefused as HttpRefused
from roundgate.errors.client import NoCommonVersion as NoCommonVersion
from roundgate.errors.client import Remedy as Remedy
from roundgate.errors.client import RpcError as RpcError
from roundgate.errors.client import TaskEnded as TaskEnded
from roundgate.errors.client import TimedOut as TimedOut
from roundgate.errors.client import TooManyRounds as TooManyRounds
from roundgate.errors.client import Unanswered as Unanswered
from roundgate.errors.client import WrongHandle as WrongHandle
from roundgate.errors.configuration import ConfigError as ConfigError
from roundgate.errors.configuration import Problem as Problem
from roundgate.errors.configuration import UsageError as UsageError
from roundgate.errors.configuration import VersionsConflict as VersionsConflict
from roundgate.errors.handlers import Diverged as Diverged
from roundgate.errors.handlers import LeaseLost as LeaseLost
from roundgate.errors.handlers import NondeterminismError as NondeterminismError
from roundgate.errors.handlers import NothingGoesOn as NothingGoesOn
from roundgate.errors.handlers import NotJson as NotJson
from roundgate.errors.handlers import StateTooLarge as StateTooLarge
from roundgate.errors.handlers import StepFailed as StepFailed
from roundgate.errors.handlers import StepTimeout as StepTimeout
from roundgate.errors.handlers import Suspend as Suspend
from roundgate.errors.inside import AnswerTooLarge as AnswerTooLarge
from roundgate.errors.inside import CallCancelled as CallCancelled
from roundgate.errors.inside import CleanedUp as CleanedUp
from roundgate.errors.inside import DanglingReference as DanglingReference
from roundgate.errors.inside import IndexOfAnotherVersion as IndexOfAnotherVersion
from roundgate.errors.inside import InvocationFailed as InvocationFailed
from roundgate.errors.inside import KeysUnavailable as KeysUnavailable
from roundgate.errors.inside import NotCancelled as NotCancelled
from roundgate.errors.inside import NotNow as NotNow
from roundgate.errors.inside import NotRetryable as NotRetryable
from roundgate.errors.inside import NotServedHere as NotServedHere
from roundgate.errors.inside import OAuthRefused as OAuthRefused
from roundgate.errors.inside import PayloadTooLarge as PayloadTooLarge
from roundgate.errors.inside import RequestMalformed as RequestMalformed
from roundgate.errors.inside import SealBroken as SealBroken
from roundgate.errors.inside import SessionOver as SessionOver
from roundgate.errors.inside import TaskGivenUp as TaskGivenUp
from roundgate.errors.inside import Throttled as Throttled
from roundgate.errors.inside import TryLater as TryLater
from roundgate.errors.inside import UnboundPlaceholder as UnboundPlaceholder
from roundgate.errors.inside import Unconfirmed as Unconfirmed
from roundgate.errors.inside import UnfitAnswer as UnfitAnswer
from roundgate.errors.inside import UnknownEncoding as UnknownEncoding
from roundgate.errors.inside import UnreadableDocument as UnreadableDocument
from roundgate.errors.inside import UnresolvedReference as UnresolvedReference
from roundgate.errors.inside import UnusableIndex as UnusableIndex
from roundgate.errors.inside import UnusableOperation as UnusableOperation
from roundgate.errors.inside import UnusableReturn as UnusableReturn
from roundgate.errors.inside import WorkerFault as WorkerFault
from roundgate.errors.inside import YamlTooCostly as YamlTooCostly
from roundgate.errors.requests import REFUSAL as REFUSAL
from roundgate.errors.requests import AuthError as AuthError
from roundgate.errors.requests import HeaderMismatch as HeaderMismatch
from roundgate.errors.requests import InsufficientScope as InsufficientScope
from roundgate.errors.requests import InternalError as InternalError
from roundgate.errors.requests import InvalidParams as InvalidParams
from roundgate.errors.requests import InvalidRequest as InvalidRequest
from roundgate.errors.requests import MethodNotFound as MethodNotFound
from roundgate.errors.requests import MissingCapability as MissingCapability
from roundgate.errors.requests import ParseError as ParseError
from roundgate.errors.requests import ProtocolError as ProtocolError
from roundgate.errors.requests import ResourceNotFound as ResourceNotFound
from roundgate.errors.requests import SessionNotFound as SessionNotFound
from roundgate.errors.requests import StateRefused as StateRefused
from roundgate.errors.requests import StoreAway as StoreAway
from roundgate.errors.requests import TaskNotFound as TaskNotFound
from roundgate.errors.requests import TransportError as TransportError
from roundgate.errors.requests import Unauthenticated as Unauthenticated
from roundgate.errors.requests import Unavailable as Unavailable
from roundgate.errors.requests import UnsupportedVersion as UnsupportedVersion
from roundgate.errors.tools import BackendError as BackendError
from roundgate.errors.tools import CallTimeout as CallTimeout
from roundgate.errors.tools import Declined as Declined
from roundgate.errors.tools import FunctionAway as FunctionAway
from roundgate.errors.tools import FunctionFailed as FunctionFailed
from roundgate.errors.tools import JobLeft as JobLeft
from roundgate.errors.tools import NoAnswer as NoAnswer
from roundgate.errors.tools import OutcomeUnknown as OutcomeUnknown
from roundgate.errors.tools import TaskTimeout as TaskTimeout
from roundgate.errors.tools import TokenRefused as TokenRefused
from roundgate.errors.tools import ToolError as ToolError
from roundgate.errors.tools import UnexpectedAnswer as UnexpectedAnswer
