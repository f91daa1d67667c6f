"""What tests of the command line share."""

from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.terminal import terminal as terminal
