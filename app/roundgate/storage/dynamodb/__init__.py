"""The stores in a table of DynamoDB, for any number of machines."""
