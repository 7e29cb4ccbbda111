"""The sockets between processes, between two ends in one process."""

import contextlib
import os
import resource
import socket
import threading
import types

import pytest

from jax_symm import _links, exchange
from jax_symm._links import Deadline, Links, host_id, wait_or_lost
from jax_symm.errors import SymmPeerLostError, SymmTimeoutError


def pair():
    """Two ends, connected."""
    low, high = Links(0), Links(1)
    caller = threading.Thread(
        target=high.connect, args=(0, low.address, low.nonce, Deadline(10))
    )
    caller.start()
    low.connect(1, high.address, high.nonce, Deadline(10))
    caller.join()
    return low, high


@pytest.fixture
def memfd():
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, b"hello")
    yield fd
    os.close(fd)


def open_fds():
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_arrive_close_on_exec(memfd):
    low, high = pair()
    low.send_fds(1, "tag", [memfd, memfd], Deadline(5))
    received = high.receive_fds(0, "tag", Deadline(5))
    assert len(received) == 2
    for fd in received:
        assert not os.get_inheritable(fd)
        assert os.pread(fd, 5, 0) == b"hello"
        os.close(fd)


def test_no_descriptors_is_a_message_too():
    low, high = pair()
    high.send_fds(0, "tag", [], Deadline(5))
    assert low.receive_fds(1, "tag", Deadline(5)) == []


def test_more_descriptors_than_one_message_holds(memfd):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        pytest.fail(f"the limit on open files is {soft}")
    low, high = pair()
    low.send_fds(1, "tag", [memfd] * 600, Deadline(5))
    received = high.receive_fds(0, "tag", Deadline(5))
    for fd in received:
        os.close(fd)
    assert len(received) == 600


def test_messages_are_told_apart_by_their_tags(memfd):
    low, high = pair()
    low.send_fds(1, "first", [], Deadline(5))
    low.send_fds(1, "second", [memfd], Deadline(5))
    (fd,) = high.receive_fds(0, "second", Deadline(5))
    os.close(fd)
    assert high.receive_fds(0, "first", Deadline(5)) == []


def test_descriptors_that_nobody_will_receive_are_closed(memfd):
    """Some are there when the exchange is given up, some come later."""
    low, high = pair()
    before = open_fds()
    high.send_fds(0, "given up", [memfd] * 3, Deadline(5))
    high._send(0, "P1 half", [memfd], Deadline(5))
    high.send_fds(0, "next", [memfd], Deadline(5))
    (fd,) = low.receive_fds(1, "next", Deadline(5))
    os.close(fd)
    assert open_fds() == before + 4
    low.forget_fds("given up")
    low.forget_fds("half")
    assert open_fds() == before
    high.send_fds(0, "half", [memfd], Deadline(5))
    high.send_fds(0, "last", [], Deadline(5))
    assert low.receive_fds(1, "last", Deadline(5)) == []
    assert open_fds() == before


def test_an_exchange_that_breaks_down_forgets_what_was_sent(memfd):
    low, high = pair()
    dead, gone = Links(2), threading.Event()
    dead_caller = threading.Thread(
        target=dead.connect, args=(0, low.address, low.nonce, Deadline(10))
    )
    dead_caller.start()
    low.connect(2, dead.address, dead.nonce, Deadline(10))
    dead_caller.join()
    low.watch(lambda peer: gone.set())
    dead._close_in_child()
    assert gone.wait(5)
    before = open_fds()
    high.send_fds(0, "key/swap", [memfd] * 2, Deadline(5))
    high.send_fds(0, "arrived", [], Deadline(5))
    assert low.receive_fds(1, "arrived", Deadline(5)) == []
    assert open_fds() == before + 2
    swap = object.__new__(exchange.Exchange)
    swap.processes, swap.process_index, swap.process_count = (0, 2, 1), 0, 3
    swap.purpose, swap.key, swap.deadline = "a test", "key", Deadline(5)
    swap._endpoints = [{"host": "here"}] * 3
    swap._job = types.SimpleNamespace(links=low)
    with pytest.raises(SymmPeerLostError, match="process 2 is gone"):
        swap.swap_fds("swap", {})
    assert open_fds() == before


def test_a_hundred_exchanges_leave_no_descriptor(memfd):
    """C36."""
    low, high = pair()
    before = open_fds()
    for i in range(100):
        low.send_fds(1, f"{i}", [memfd], Deadline(5))
        os.close(high.receive_fds(0, f"{i}", Deadline(5))[0])
    assert open_fds() == before


def test_a_deadline_ends_the_wait():
    low, _high = pair()
    with pytest.raises(SymmTimeoutError, match="process 1 sent nothing for 'x' within"):
        low.receive_fds(1, "x", Deadline(0.1))


def test_without_the_nonce_there_is_no_connection():
    low, stranger = Links(0), Links(1)

    def talk():
        stranger.connect(0, low.address, b"0" * 16, Deadline(5))
        stranger.receive_fds(0, "x", Deadline(5))

    with pytest.raises(SymmPeerLostError, match="process 0 is gone"):
        talk()
    with pytest.raises(SymmTimeoutError):
        low.connect(1, stranger.address, stranger.nonce, Deadline(0.2))


def test_a_half_said_hello_harms_nobody():
    low = Links(0)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    probe.connect(low.address)
    probe.send(b"?")
    high = Links(1)
    high.connect(0, low.address, low.nonce, Deadline(5))
    low.connect(1, high.address, high.nonce, Deadline(5))
    probe.close()


def test_a_watcher_that_raises_harms_nobody(caplog):
    low, high = pair()
    other = Links(2)
    lost = threading.Event()

    def broken(peer):
        raise RuntimeError("a watcher's own fault")

    low.watch(broken)
    low.watch(lambda peer: lost.set())
    high._close_in_child()
    assert lost.wait(5)
    assert "process 1 is gone" in caplog.text
    # The thread is still there to take connections.
    other.connect(0, low.address, low.nonce, Deadline(5))
    low.connect(2, other.address, other.nonce, Deadline(5))


def test_a_message_of_no_known_form_is_a_loss():
    low, high = pair()
    high._sockets[0].send(b"F? x")
    with pytest.raises(SymmPeerLostError, match="came truncated"):
        low.receive_fds(1, "x", Deadline(5))


def test_without_descriptors_to_spare_the_listener_stays(monkeypatch, caplog):
    low, high = Links(0), Links(1)
    accept, answers = low._listener.accept, [OSError(24, "Too many open files")]

    class Listener:
        def accept(self):
            if answers:
                raise answers.pop()
            return accept()

    monkeypatch.setattr(low, "_listener", Listener())
    high.connect(0, low.address, low.nonce, Deadline(5))
    low.connect(1, high.address, high.nonce, Deadline(5))
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("side", ["calls", "is called"])
def test_another_user_is_no_peer(side, monkeypatch):
    low, high = Links(0), Links(1)
    stranger = low if side == "calls" else high
    real = _links._same_user
    main = threading.current_thread()

    def same_user(connection):
        checks_caller = threading.current_thread() is not main
        return real(connection) and checks_caller != (stranger is low)

    monkeypatch.setattr(_links, "_same_user", same_user)

    def talk():
        high.connect(0, low.address, low.nonce, Deadline(5))
        high.receive_fds(0, "x", Deadline(5))

    with pytest.raises(SymmPeerLostError):
        talk()


def test_the_end_of_a_peer_is_seen_at_once():
    low, high = pair()
    lost = threading.Event()
    low.watch(lambda peer: lost.set() if peer == 1 else None)
    high._close_in_child()
    assert lost.wait(5)
    assert list(low.lost([1])) == [1]
    with pytest.raises(SymmPeerLostError, match="process 1 is gone"):
        low.receive_fds(1, "x", Deadline(5))
    assert list(wait_or_lost(threading.Event(), low, [1], Deadline(5))) == [1]


def test_a_leave_is_no_loss():
    low, high = pair()
    high.say_left("ws/1")
    high.send_fds(0, "after", [], Deadline(5))
    low.receive_fds(1, "after", Deadline(5))
    assert low.has_left(1, "ws/1")
    assert not low.has_left(1, "ws/2")


def test_a_truncated_message_is_a_loss(memfd):
    """C36: descriptors that the kernel cut off are not taken for the whole."""
    low, high = pair()
    socket.send_fds(high._sockets[0], [b"F2 tag"], [memfd])
    with pytest.raises(SymmPeerLostError, match="came truncated"):
        low.receive_fds(1, "tag", Deadline(5))


def test_two_jobs_on_one_host_do_not_meet():
    """C36: addresses come from the kernel, so no two listeners share one."""
    ends = [Links(0) for _ in range(20)]
    assert len({end.address for end in ends}) == 20
    assert all(end.address.startswith(b"\0") for end in ends)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_forked_child_does_not_hold_the_connection():
    """C37."""
    low, high = pair()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            threading.Event().wait(30)
        os._exit(0)
    try:
        high._close_in_child()
        lost = wait_or_lost(threading.Event(), low, [1], Deadline(5))
        assert list(lost) == [1]
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_host_id_is_of_this_boot_and_network():
    assert host_id() == host_id()
    assert "net:[" in host_id()
