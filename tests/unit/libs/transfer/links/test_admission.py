from __future__ import annotations

from libs.transfer.links.admission import Admission


class Links:
    """Links that take a place each time that they are woken."""

    def __init__(self, places: int) -> None:
        self.woken: list[str] = []
        self.admission: Admission[str] = Admission(places, self.woken.append)


def test_no_more_than_the_places_are_out() -> None:
    """A place that is taken is free again only when it is given back."""
    links = Links(2)
    assert links.admission.take("a")
    assert links.admission.take("a")
    assert not links.admission.take("a")
    links.admission.give()
    assert links.woken == ["a"]
    assert links.admission.take("a")
    assert not links.admission.take("a")


def test_links_take_turns() -> None:
    """Who has just had a place waits behind those that have waited longer."""
    links = Links(1)
    assert links.admission.take("a")
    assert not links.admission.take("b")
    assert not links.admission.take("c")
    order: list[str] = []
    for _ in range(5):
        links.admission.give()
        turn = links.woken[-1]
        assert links.admission.take(turn)
        assert not links.admission.take(turn)
        order.append(turn)
    assert order == ["b", "c", "b", "c", "b"]


def test_who_jumps_the_queue_is_sent_to_its_end() -> None:
    """A free place belongs to the first that waits."""
    links = Links(1)
    assert links.admission.take("a")
    assert not links.admission.take("b")
    links.admission.give()
    assert not links.admission.take("c")
    assert links.woken == ["b", "b"]
    assert links.admission.take("b")


def test_a_link_that_is_over_holds_up_nobody() -> None:
    """When the first that waits leaves, the next is woken."""
    links = Links(1)
    assert links.admission.take("a")
    assert not links.admission.take("b")
    assert not links.admission.take("c")
    links.admission.give()
    links.admission.leave("b")
    assert links.woken == ["b", "c"]
    assert links.admission.take("c")
