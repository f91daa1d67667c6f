"""What tests of several stores share."""

from tests.support.dynamodb import dynamodb as dynamodb
