"""What tests of the command line share."""

from tests.support.terminal import terminal as terminal
