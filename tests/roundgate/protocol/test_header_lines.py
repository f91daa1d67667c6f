"""Lines of one name are one value; what came on several lines is told."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from roundgate.protocol.jsonrpc import Headers

Lines = list[tuple[bytes, bytes]]
LINES = st.lists(
    st.tuples(
        st.sampled_from([b"accept", b"host", b"x"]) | st.binary(max_size=2), st.binary(max_size=3)
    )
)


def test_lines_of_one_name_are_a_list() -> None:
    headers = Headers.of([(b"host", b"a"), (b"accept", b"x"), (b"accept", b"y"), (b"accept", b"z")])
    assert headers == {b"host": b"a", b"accept": b"x, y, z"}
    assert headers.repeated == (b"accept",)


@given(LINES)
@example([(b"a", b""), (b"a", b"")])
def test_every_line_is_in_the_value_of_its_name_in_order(lines: Lines) -> None:
    headers = Headers.of(lines)
    assert set(headers) == {name for name, _ in lines}
    for name, value in headers.items():
        assert value == b", ".join(value for one, value in lines if one == name)


@given(LINES)
@example([(b"a", b"1"), (b"b", b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", b"5")])
def test_names_of_several_lines_are_told_in_the_order_of_their_second_ones(lines: Lines) -> None:
    names = [name for name, _ in lines]
    seconds = [index for index, name in enumerate(names) if names[:index].count(name) == 1]
    assert list(Headers.of(lines).repeated) == [names[index] for index in seconds]


@given(LINES)
def test_one_line_a_name_is_no_repetition_whatever_came_before(lines: Lines) -> None:
    Headers.of([(b"a", b"1"), (b"a", b"2")])
    assert Headers.of(list(dict(lines).items())).repeated == ()
