"""What tests of the command line share."""

from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.terminal import terminal as terminal
