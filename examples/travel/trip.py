"""A trip, booked by one function that asks a question, runs for long, and survives the death of its
process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool

OFFICE = Path(os.environ.get("TRAVEL_OFFICE", ".roundgate"))
"""The folder with the travel office's ledger. While it has a file `hotels-closed`, no hotel
answers."""


class Confirm(BaseModel):
    """The traveller's answer to the question whether to book."""

    book: bool


def enter(what: str) -> None:
    """Write a line into the ledger for an action, with the id of the process that performs it."""
    OFFICE.mkdir(exist_ok=True)
    with (OFFICE / "ledger").open("a") as ledger:
        ledger.write(f"{os.getpid()} {what}\n")


def book_flight(city: str) -> str:
    """Book a seat."""
    enter(f"flight to {city}")
    return f"RG-{len(city)}17"


def book_hotel(city: str) -> str:
    """Book a room once hotels are open."""
    while (OFFICE / "hotels-closed").exists():
        time.sleep(0.1)
    enter(f"hotel in {city}")
    return f"Hotel {city}"


@tool(task="optional")
async def book_trip(ctx: Context, city: str) -> str:
    """Book a flight and a hotel. Asks for confirmation first.

    Args:
        city: The destination.
    """
    answer = await ctx.elicit("confirm", f"Book a trip to {city}?", Confirm)
    if not answer.book:
        return "Nothing was booked"
    await ctx.continue_as_task()
    flight = await ctx.step("flight", book_flight, city)
    await ctx.status(f"flight {flight} is booked, waiting for a hotel")
    hotel = await ctx.step("hotel", book_hotel, city)
    return f"Flight {flight}, {hotel}"
