"""A trip, booked by one function: it asks, it takes long, and it survives the process that runs it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool

OFFICE = Path(os.environ.get("TRAVEL_OFFICE", ".roundgate"))
"""Where the travel office keeps its ledger. While it has a file `hotels-closed`, no hotel answers."""


class Confirm(BaseModel):
    """What the traveller is asked."""

    book: bool


def enter(what: str) -> None:
    """One line in the ledger for each time that something is really done, with the process that did it."""
    OFFICE.mkdir(exist_ok=True)
    with (OFFICE / "ledger").open("a") as ledger:
        ledger.write(f"{os.getpid()} {what}\n")


def book_flight(city: str) -> str:
    """Book a seat."""
    enter(f"flight to {city}")
    return f"RG-{len(city)}17"


def book_hotel(city: str) -> str:
    """Book a room, as soon as there is somebody at the desk."""
    while (OFFICE / "hotels-closed").exists():
        time.sleep(0.1)
    enter(f"hotel in {city}")
    return f"Hotel {city}"


@tool(task="optional")
async def book_trip(ctx: Context, city: str) -> str:
    """Book a flight and a hotel; asks before it does.

    Args:
        city: Where to.
    """
    answer = await ctx.elicit("confirm", f"Book a trip to {city}?", Confirm)
    if not answer.book:
        return "Nothing was booked"
    await ctx.continue_as_task()
    flight = await ctx.step("flight", book_flight, city)
    await ctx.status(f"flight {flight} is booked, waiting for a hotel")
    hotel = await ctx.step("hotel", book_hotel, city)
    return f"Flight {flight}, {hotel}"
