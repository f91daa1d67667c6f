"""The stores in a SQLite file, for one machine."""
