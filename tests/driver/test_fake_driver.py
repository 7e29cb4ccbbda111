"""The fake driver refuses what the real one refuses, and waits where it waits."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time
import traceback
from typing import Any

import pytest
from fake_cuda.launch import NOTHING, FakeMachine, library
from fake_cuda.model import FABRIC, MIB, POSIX_FD
from hub import Hub


class Prop(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("rest", ctypes.c_uint64 * 2),
    ]


class MulticastProp(ctypes.Structure):
    _fields_ = [
        ("num_devices", ctypes.c_uint),
        ("size", ctypes.c_size_t),
        ("handle_types", ctypes.c_ulonglong),
        ("flags", ctypes.c_ulonglong),
    ]


class Access(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


U64 = ctypes.c_uint64


class Driver:
    """The raw entry points, as a caller with a bug could use them."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(library()))

    def call(self, name: str, *args: Any) -> int:
        return int(getattr(self._library, name)(*args))

    def context(self, device: int = 0) -> None:
        context = ctypes.c_void_p()
        assert self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device) == 0
        assert self.call("cuCtxSetCurrent", context) == 0

    def create(
        self, device: int = 0, size: int = 2 * MIB, handle_types: int = POSIX_FD
    ) -> tuple[int, int]:
        handle = U64()
        prop = Prop(1, handle_types, 1, device)
        result = self.call(
            "cuMemCreate", ctypes.byref(handle), U64(size), ctypes.byref(prop), U64(0)
        )
        return result, handle.value

    def multicast(
        self, devices: int = 2, size: int = 4 * MIB, handle_types: int = POSIX_FD
    ) -> tuple[int, int]:
        handle = U64()
        prop = MulticastProp(devices, size, handle_types, 0)
        result = self.call(
            "cuMulticastCreate", ctypes.byref(handle), ctypes.byref(prop)
        )
        return result, handle.value

    def add(self, handle: int, device: int) -> int:
        return self.call("cuMulticastAddDevice", U64(handle), device)

    def bind(self, handle: int, offset: int, memory: int, size: int = 2 * MIB) -> int:
        return self.call(
            "cuMulticastBindMem",
            *(U64(handle), U64(offset), U64(memory), U64(0), U64(size), U64(0)),
        )

    def unbind(self, handle: int, device: int, offset: int, size: int) -> int:
        return self.call(
            "cuMulticastUnbind", U64(handle), device, U64(offset), U64(size)
        )

    def release(self, handle: int) -> int:
        return self.call("cuMemRelease", U64(handle))

    def reserve(self, size: int) -> int:
        address = U64()
        arguments = (U64(size), U64(0), U64(0), U64(0))
        assert self.call("cuMemAddressReserve", ctypes.byref(address), *arguments) == 0
        return address.value

    def map(self, address: int, size: int, handle: int, offset: int = 0) -> int:
        return self.call(
            "cuMemMap", U64(address), U64(size), U64(offset), U64(handle), U64(0)
        )

    def access(self, address: int, size: int, device: int) -> int:
        access = Access(1, device, 3)
        return self.call(
            "cuMemSetAccess", U64(address), U64(size), ctypes.byref(access), U64(1)
        )

    def export(self, handle: int, kind: int) -> tuple[int, Any]:
        out = ctypes.create_string_buffer(64) if kind == FABRIC else ctypes.c_int(-1)
        result = self.call(
            "cuMemExportToShareableHandle", ctypes.byref(out), U64(handle), kind, U64(0)
        )
        return result, out.raw if kind == FABRIC else out.value

    def import_(self, shared: Any, kind: int) -> tuple[int, int]:
        handle = U64()
        pointer = ctypes.c_char_p(shared) if kind == FABRIC else ctypes.c_void_p(shared)
        result = self.call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), pointer, kind
        )
        return result, handle.value


@pytest.fixture
def driver(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """In this process, for what leaves nothing."""
    for name, value in machine.environment("raw").items():
        monkeypatch.setenv(name, value)
    return Driver()


def in_child(machine: FakeMachine, test: Any, **more: str) -> None:
    """Runs `test(driver)` in a process of its own, so that what it leaves goes with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ranks", "pytest"])
    said = context.Queue()
    process = context.Process(
        target=_child, args=(test, machine.environment("raw", **more), said)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0, said.get(timeout=1) if not said.empty() else process


def _child(test: Any, environment: dict[str, str], said: Any) -> None:
    os.environ.update(environment)
    d = Driver()
    try:
        assert d.call("cuInit", 0) == 0
        d.context()
        test(d)
    except BaseException:
        said.put(traceback.format_exc())
        said.close()
        said.join_thread()
        raise


def sizes(d: Driver) -> None:
    assert d.create(size=3 * MIB)[0] == 1
    assert d.create(size=0)[0] == 1
    assert d.multicast(size=3 * MIB)[0] == 1
    assert d.create(device=99)[0] == 101


def mapping(d: Driver) -> None:
    _, memory = d.create(size=4 * MIB)
    address = d.reserve(4 * MIB)
    assert d.map(address, 2 * MIB, memory, offset=2 * MIB) == 1
    assert d.map(address, 4 * MIB, memory) == 0
    assert d.map(address, 4 * MIB, memory) == 1  # mapped already
    assert d.call("cuMemAddressFree", U64(address), U64(4 * MIB)) == 1  # still mapped
    assert d.call("cuMemUnmap", U64(address), U64(2 * MIB)) == 1  # not all of it
    assert d.call("cuMemsetD8_v2", U64(address), 1, U64(8)) == 1  # no access yet
    assert d.access(address, 4 * MIB, 0) == 0
    assert d.call("cuMemsetD8_v2", U64(address), 1, U64(8)) == 0
    assert d.release(memory) == 0
    assert ctypes.string_at(address, 8) == b"\1" * 8  # the mapping keeps it
    assert d.call("cuMemUnmap", U64(address), U64(4 * MIB)) == 0
    assert d.call("cuMemAddressFree", U64(address), U64(4 * MIB)) == 0
    assert d.release(memory) == 1


def team(d: Driver) -> None:
    _, mc = d.multicast()
    assert d.add(mc, 0) == 0
    assert d.add(mc, 0) == 1  # the same device twice
    assert d.add(mc, 1) == 0
    assert d.add(mc, 2) == 1  # full
    _, other = d.create(device=2)
    assert d.bind(mc, 0, other) == 101  # not of the team
    address = d.reserve(4 * MIB)
    assert d.map(address, 4 * MIB, mc) == 0
    assert d.access(address, 4 * MIB, 2) == 101
    assert d.access(address, 4 * MIB, 1) == 0
    assert d.call(
        "cuMemcpyDtoH_v2", ctypes.create_string_buffer(8), U64(address), U64(8)
    )


def binding(d: Driver) -> None:
    _, mc = d.multicast()
    assert d.add(mc, 0) == d.add(mc, 1) == 0
    _, memory = d.create(size=4 * MIB)
    assert d.bind(mc, MIB, memory) == 1  # offset off the granularity
    assert d.bind(mc, 4 * MIB, memory) == 1  # beyond the object
    assert d.bind(mc, 0, memory, 4 * MIB) == 0
    assert d.bind(mc, 2 * MIB, memory) == 1  # overlaps
    assert d.unbind(mc, 0, 0, 2 * MIB) == 1  # not what was bound
    assert d.unbind(mc, 0, 0, 4 * MIB) == 0
    private = d.create(handle_types=0)[1]
    assert d.bind(mc, 0, private) == 1  # shareable object, private memory


def freed_before_unbind(d: Driver) -> None:
    _, mc = d.multicast()
    assert d.add(mc, 0) == d.add(mc, 1) == 0
    _, memory = d.create()
    assert d.bind(mc, 0, memory) == 0
    assert d.release(memory) == 0
    assert d.unbind(mc, 0, 0, 2 * MIB) == 1


@pytest.mark.parametrize("check", [sizes, mapping, team, binding])
def test_refusals(machine: FakeMachine, check: Any) -> None:
    in_child(machine, check)


def test_memory_freed_before_it_was_unbound(machine: FakeMachine) -> None:
    in_child(machine, freed_before_unbind)
    assert machine.report()["violations"] == ["memory was freed before it was unbound"]


def no_attribute(d: Driver) -> None:
    assert d.multicast()[0] == 801


def no_substance(d: Driver) -> None:
    _, mc = d.multicast()
    assert d.add(mc, 0) == d.add(mc, 1) == 0
    _, memory = d.create()
    assert d.bind(mc, 0, memory) == 802
    address = d.reserve(4 * MIB)
    assert d.map(address, 4 * MIB, mc) == 802  # one answer for all who wait


def no_channel(d: Driver) -> None:
    assert d.create(handle_types=FABRIC)[0] == 800
    assert d.create(handle_types=POSIX_FD | FABRIC)[0] == 800
    assert d.multicast(handle_types=FABRIC)[0] == 800
    assert d.create()[0] == 0


def out_of_memory(d: Driver) -> None:
    assert d.create(size=6 * MIB)[0] == 2
    assert d.create(size=4 * MIB)[0] == 0
    assert d.create(size=2 * MIB)[0] == 2
    assert d.create(size=2 * MIB, device=1)[0] == 0


def no_peer_access(d: Driver) -> None:
    address, (_, memory) = d.reserve(2 * MIB), d.create(device=0)
    assert d.map(address, 2 * MIB, memory) == 0
    assert d.access(address, 2 * MIB, 2) == 217
    assert d.access(address, 2 * MIB, 1) == 0


@pytest.mark.parametrize(
    ("check", "config"),
    [
        (no_attribute, {"multicast_attribute": (False,) * 16}),
        (no_substance, {"fabric_manager": 802}),
        (no_channel, {"fabric_channel": False}),
        (out_of_memory, {"gpu_bytes": 4 * MIB}),
        (no_peer_access, {"peer_access": ((0, 1), (1, 0))}),
    ],
)
def test_machines(machine: FakeMachine, check: Any, config: dict[str, Any]) -> None:
    machine.configure(**config)
    in_child(machine, check)


def large(d: Driver) -> None:
    size = 1 << 40
    result, memory = d.create(size=size)
    assert result == 0
    address = d.reserve(size)
    assert d.map(address, size, memory) == 0
    assert d.access(address, size, 0) == 0
    assert d.call("cuMemsetD8_v2", U64(address + size - 8), 7, U64(8)) == 0
    assert ctypes.string_at(address + size - 8, 8) == b"\7" * 8


def test_a_tebibyte(machine: FakeMachine) -> None:
    machine.configure(gpu_bytes=1 << 41)
    in_child(machine, large)


@pytest.mark.parametrize("pool_size", [0, 1, 16, 128, 820, 1024])
def test_pool(machine: FakeMachine, pool_size: int) -> None:
    """Slots are taken by the last join, refused with 2, and given back at the end."""
    machine.configure(pool_size=pool_size)
    in_child(machine, fill_pool, SLOTS=str(pool_size))
    assert machine.report()["slots_ever"] == pool_size + bool(pool_size)


def fill_pool(d: Driver) -> None:
    """Takes every slot, one more, and one again after one came back."""
    memory = d.create()[1]
    slots = int(os.environ["SLOTS"])
    objects = [d.multicast(devices=1)[1] for _ in range(slots + 1)]
    for mc in objects:
        assert d.add(mc, 0) == 0
    results = []
    for mc in objects:
        results.append(d.bind(mc, 0, memory))
        if results[-1] == 0:
            assert d.unbind(mc, 0, 0, 2 * MIB) == 0
    assert results == [0] * slots + [2]
    if slots:
        assert d.release(objects[0]) == 0
        again = d.multicast(devices=1)[1]
        assert d.add(again, 0) == 0
        assert d.bind(again, 0, memory) == 0


def waits(d: Driver) -> None:
    _, mc = d.multicast()
    _, memory = d.create()
    assert d.add(mc, 0) == 0
    results: list[int] = []

    def bind() -> None:
        d.context()
        results.append(d.bind(mc, 0, memory))

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()  # the team is not complete
    assert d.add(mc, 1) == 0
    thread.join(10)
    assert results == [0]


def waits_for_fabric_manager(d: Driver) -> None:
    _, mc = d.multicast()
    _, memory = d.create()
    assert d.add(mc, 0) == d.add(mc, 1) == 0
    before = time.monotonic()
    assert d.bind(mc, 0, memory) == 0
    assert time.monotonic() - before > 0.2


def test_bind_waits_for_the_team(machine: FakeMachine) -> None:
    in_child(machine, waits)
    assert machine.report()["premature_waits"] == 1


def test_bind_waits_for_the_fabric_manager(machine: FakeMachine) -> None:
    machine.configure(fabric_manager_delay_s=0.3)
    in_child(machine, waits_for_fabric_manager)


def late_import(d: Driver) -> None:
    _, mc = d.multicast(devices=1, handle_types=FABRIC)
    _, shared = d.export(mc, FABRIC)
    _, memory = d.create()
    assert d.import_(shared, FABRIC)[1] == mc
    assert d.release(mc) == d.release(mc) == 0
    result, other = d.import_(shared, FABRIC)
    assert result == 0
    assert other != mc  # another object, which nobody joins
    _, shared = d.export(memory := d.create(handle_types=FABRIC)[1], FABRIC)
    assert d.release(memory) == 0
    assert d.import_(shared, FABRIC)[0] == 400


def descriptors_pin(d: Driver) -> None:
    _, memory = d.create()
    _, fd = d.export(memory, POSIX_FD)
    assert d.release(memory) == 0
    result, again = d.import_(fd, POSIX_FD)
    assert result == 0
    assert again == memory
    os.close(fd)
    assert d.import_(fd, POSIX_FD)[0] != 0
    assert d.export(memory, FABRIC)[0] == 1  # a type that was not asked for


@pytest.mark.parametrize("check", [late_import, descriptors_pin])
def test_handles(machine: FakeMachine, check: Any) -> None:
    in_child(machine, check)


def test_other_domain(machine: FakeMachine, driver: Driver) -> None:
    """A fabric handle of another NVLink domain is refused with 400."""
    shared = bytes(8) + b"elsewhere"
    assert driver.import_(shared.ljust(64, b"\0"), FABRIC)[0] == 400


def test_killed_process_gives_everything_back(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    from ranks import Setup
    from test_matrix import GROUPS, eventually

    hubs[3].run("open_kept", {"setup": Setup("kill", GROUPS["several"])})
    assert machine.counts()["slots"] == 1
    for index in range(3):
        worker = hubs[3]._workers[index]
        assert worker is not None
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGKILL)
        hubs[3].discard(index)
    eventually(lambda: machine.counts() == NOTHING)
    assert machine.counts() == NOTHING
