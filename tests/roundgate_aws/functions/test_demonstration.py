"""What `roundgate stack --demo` calls, without the stack."""

from __future__ import annotations

from roundgate_aws.stack.demo import CONFIG
from roundgate_testing import Gateway


async def test_a_booking_asks_twice_and_a_trip_goes_on_as_a_task() -> None:
    async with Gateway(CONFIG) as gateway:
        booked = {"where": {"city": "Rome"}, "agree": {"go": True}}
        assert (await gateway.call("book", answers=booked)).text == "a room in Rome, 160 EUR"
        declined = {**booked, "agree": {"go": False}}
        assert (await gateway.call("book", answers=declined)).text == "nothing booked"
        trip = await gateway.call("travel", {"city": "Oslo"}, answers={"who": {"name": "Ann"}})
        assert trip.text == "Ann goes to Oslo for 160 EUR"
