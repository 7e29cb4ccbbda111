"""What a vote that failed is said to have failed of."""

import dataclasses

import pytest

from jax_symm._rounds import OK
from jax_symm.agreement import settle
from jax_symm.errors import SymmPeerLostError, SymmValueError
from jax_symm.group import MeshGroups


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int
    platform: str = "cpu"


GROUPS = MeshGroups(("tp",), (tuple(Device(i, i) for i in range(3)),))


class Ballot:
    """A vote that rank 2, another process's, decides."""

    def __init__(self, text):
        self._text = text
        self.posted = {}

    def vote(self, name, codes):
        assert codes == {0: OK}
        return {0: 1 << 16 | 2}

    def post(self, key, text):
        self.posted[key] = text

    def read(self, key):
        return self._text


def test_the_failure_of_another_process():
    ballot = Ballot("SymmValueError\nits own words")
    with pytest.raises(SymmValueError, match="^its own words$"):
        settle(ballot, GROUPS, "a round", None)


def test_a_process_that_died_before_it_said_why():
    text = r"rank 2 \(process 2, cpu:2\) of group 0 failed and left no reason"
    with pytest.raises(SymmPeerLostError, match=text):
        settle(Ballot(""), GROUPS, "a round", None)
