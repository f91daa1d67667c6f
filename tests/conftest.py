"""What every test shares: Hypothesis tells the same story every time, and slow machines are no failure."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
