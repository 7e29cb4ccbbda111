"""What the fake driver believes: GPUs, memory, multicast objects, processes, references.

The rules are the driver's documented contract (cuda.h of CUDA 13) and, for the multicast
pool and the waiting, the behaviour that the open kernel modules show: a slot of the pool
is asked for when the last device joins, the answer is one for all who wait, and the slot
comes back with the last reference of any kind in any process.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
from collections.abc import Callable

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_DEVICE = 101
PEER_ACCESS_UNSUPPORTED = 217
INVALID_HANDLE = 400
NOT_PERMITTED = 800
NOT_SUPPORTED = 801

POSIX_FD = 1
FABRIC = 8
MIB = 1 << 20


class DriverError(Exception):
    """A call is answered by this CUresult."""

    def __init__(self, result: int):
        super().__init__(result)
        self.result = result


def require(condition: bool, result: int = INVALID_VALUE) -> None:
    """Answers a call with `result` unless `condition` holds."""
    if not condition:
        raise DriverError(result)


@dataclasses.dataclass
class Config:
    """How the modelled machine is made. Tests change fields between cases."""

    gpus: int = 8
    gpu_bytes: int = 1 << 36
    granularity: int = 2 * MIB
    multicast_granularity: int = 2 * MIB
    multicast_recommended: int = 512 * MIB
    multicast_attribute: tuple[bool, ...] = (True,) * 72
    posix_fd_attribute: bool = True
    fabric_attribute: bool = True
    fabric_channel: bool = True
    peer_access: tuple[tuple[int, int], ...] | None = None
    multiprocessors: int = 132
    capability: tuple[int, int] = (9, 0)
    pool_size: int = 128
    #: What the fabric manager answers when a team is complete, and how late. None: never.
    fabric_manager: int | None = 0
    fabric_manager_delay_s: float = 0.0
    #: The next answers, used before `fabric_manager`.
    fabric_manager_next: list[int] = dataclasses.field(default_factory=list)


class Object:
    """Something with references: handles, mappings, descriptors, over all processes."""

    ids = itertools.count(1)

    def __init__(self, size: int, handle_types: int):
        self.id = next(Object.ids)
        self.size = size
        self.handle_types = handle_types
        self.references = 0


class Memory(Object):
    """Physical memory of one GPU, in a memfd so that bytes move between processes."""

    def __init__(self, gpu: int, size: int, handle_types: int):
        super().__init__(size, handle_types)
        self.gpu = gpu
        self.memfd = os.memfd_create(f"fake-gpu{gpu}", os.MFD_CLOEXEC)
        os.ftruncate(self.memfd, size)
        self.alive = True


@dataclasses.dataclass(frozen=True)
class Binding:
    """Memory of `gpu` bound at [offset, offset + size) of a multicast object."""

    gpu: int
    offset: int
    size: int
    memory: Memory


class Multicast(Object):
    """A multicast object. `status` is the fabric manager's one answer, None until then."""

    def __init__(self, size: int, num_devices: int, handle_types: int):
        super().__init__(size, handle_types)
        self.num_devices = num_devices
        self.team: list[int] = []
        self.bindings: list[Binding] = []
        self.status: int | None = None
        self.holds_slot = False
        self.waiters: list[Callable[[], None]] = []

    @property
    def complete(self) -> bool:
        """Whether every device has joined."""
        return len(self.team) == self.num_devices


@dataclasses.dataclass
class Mapping:
    """An object mapped at an address of a process, and who may touch it."""

    obj: Object
    size: int
    access: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel launch: `grid` CTAs in clusters of `cluster`."""

    kernel: str
    rank: int
    grid: int
    cluster: int


class Process:
    """A process that loaded the driver."""

    def __init__(self, tag: str, pid: int, visible: list[int], domain: str):
        self.tag = tag
        self.pid = pid
        self.visible = visible
        self.domain = domain
        self.handles: dict[int, tuple[Object, int]] = {}
        self.ranges: dict[int, int] = {}
        self.mappings: dict[int, Mapping] = {}
        self.contexts: dict[int, int] = {}

    def gpu(self, ordinal: int) -> int:
        """The physical GPU behind an ordinal of this process."""
        require(0 <= ordinal < len(self.visible), INVALID_DEVICE)
        return self.visible[ordinal]

    def object(self, handle: int) -> Object:
        """The object behind a handle of this process."""
        require(handle in self.handles)
        return self.handles[handle][0]

    def mapping_at(self, address: int, nbytes: int) -> tuple[int, Mapping]:
        """The mapping that holds [address, address + nbytes), with its base."""
        for base, mapping in self.mappings.items():
            if base <= address and address + nbytes <= base + mapping.size:
                return base, mapping
        raise DriverError(INVALID_VALUE)


class Machine:
    """All GPUs, processes and objects, and what went wrong in using them."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], None]):
        self.config = Config()
        self.call_later = call_later
        self.processes: list[Process] = []
        self.objects: dict[int, Object] = {}
        self.forgotten: dict[int, tuple[int, int, int]] = {}
        self.exports: dict[int, tuple[socket.socket, Object]] = {}
        self.used: dict[int, int] = {}
        self.slots_in_use = 0
        self.slots_ever = 0
        self.violations: list[str] = []
        self.launches: list[Launch] = []

    # References.

    def hold(self, obj: Object) -> None:
        """Adds a reference."""
        obj.references += 1
        self.objects[obj.id] = obj

    def drop(self, obj: Object) -> None:
        """Takes a reference away; the last one destroys the object."""
        obj.references -= 1
        if obj.references:
            return
        del self.objects[obj.id]
        if isinstance(obj, Memory):
            self.used[obj.gpu] -= obj.size
            obj.alive = False
            os.close(obj.memfd)
        elif isinstance(obj, Multicast):
            self.forgotten[obj.id] = (obj.size, obj.num_devices, obj.handle_types)
            if obj.holds_slot:
                self.slots_in_use -= 1

    def add_handle(self, process: Process, obj: Object) -> int:
        """Gives `process` a handle, or one more reference on the one it has."""
        _, count = process.handles.get(obj.id, (obj, 0))
        process.handles[obj.id] = (obj, count + 1)
        self.hold(obj)
        return obj.id

    def release(self, process: Process, handle: int) -> None:
        """cuMemRelease."""
        obj, count = process.handles[handle]
        if count > 1:
            process.handles[handle] = (obj, count - 1)
        else:
            del process.handles[handle]
        self.drop(obj)

    def bury(self, process: Process) -> None:
        """What the kernel does when a process ends."""
        self.processes.remove(process)
        for mapping in process.mappings.values():
            self.drop(mapping.obj)
        for obj, count in process.handles.values():
            for _ in range(count):
                self.drop(obj)

    # Memory.

    def create_memory(self, gpu: int, size: int, handle_types: int) -> Memory:
        """cuMemCreate."""
        require(size > 0 and size % self.config.granularity == 0)
        if handle_types & FABRIC:
            require(self.config.fabric_attribute, NOT_SUPPORTED)
            require(self.config.fabric_channel, NOT_PERMITTED)
        used = self.used.get(gpu, 0) + size
        require(used <= self.config.gpu_bytes, OUT_OF_MEMORY)
        memory = Memory(gpu, size, handle_types)
        self.used[gpu] = used
        return memory

    def export_fd(self, obj: Object) -> socket.socket:
        """One end of a socket pair; the other, kept here, tells when all copies are closed."""
        require(bool(obj.handle_types & POSIX_FD))
        kept, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.exports[os.fstat(given.fileno()).st_ino] = (kept, obj)
        self.hold(obj)
        return given

    def import_fd(self, fd: int) -> Object:
        """The object behind an exported descriptor."""
        require(fd >= 0)
        export = self.exports.get(os.fstat(fd).st_ino)
        require(export is not None)
        assert export is not None
        return export[1]

    def close_export(self, inode: int) -> None:
        """The last copy of an exported descriptor was closed."""
        kept, obj = self.exports.pop(inode)
        kept.close()
        self.drop(obj)

    def import_fabric(self, process: Process, data: bytes) -> Object:
        """The object behind a fabric handle. The handle itself holds nothing."""
        require(self.config.fabric_channel, NOT_PERMITTED)
        number = int.from_bytes(data[:8], "little")
        require(data[8:].rstrip(b"\0").decode() == process.domain, INVALID_HANDLE)
        if number in self.objects:
            return self.objects[number]
        # A multicast object whose creator let go too early: the importer gets another one,
        # which nobody will ever complete.
        require(number in self.forgotten, INVALID_HANDLE)
        return Multicast(*self.forgotten[number])

    # Multicast.

    def create_multicast(
        self, size: int, num_devices: int, handle_types: int
    ) -> Multicast:
        """cuMulticastCreate: a descriptor only, no slot."""
        require(size > 0 and size % self.config.multicast_granularity == 0)
        require(num_devices > 0)
        if handle_types & FABRIC:
            require(self.config.fabric_channel, NOT_PERMITTED)
        return Multicast(size, num_devices, handle_types)

    def join(self, obj: Multicast, gpu: int) -> None:
        """cuMulticastAddDevice. The last one asks the fabric manager for a slot."""
        require(self.config.multicast_attribute[gpu], NOT_SUPPORTED)
        require(gpu not in obj.team)
        require(not obj.complete)
        obj.team.append(gpu)
        if obj.complete:
            self._ask_fabric_manager(obj)

    def _ask_fabric_manager(self, obj: Multicast) -> None:
        queue = self.config.fabric_manager_next
        answer = queue.pop(0) if queue else self.config.fabric_manager
        if answer is None:
            return
        if answer == 0 and self.slots_in_use >= self.config.pool_size:
            answer = OUT_OF_MEMORY
        if answer == 0:
            self.slots_in_use += 1
            self.slots_ever += 1
            obj.holds_slot = True
        final = answer

        def settle() -> None:
            obj.status = final
            waiters, obj.waiters = obj.waiters, []
            for wake in waiters:
                wake()

        self.call_later(self.config.fabric_manager_delay_s, settle)

    def bind(self, obj: Multicast, offset: int, memory: Memory, size: int) -> None:
        """cuMulticastBindMem, once the team is up."""
        unit = self.config.multicast_granularity
        require(offset % unit == 0 and size % unit == 0 and 0 < size <= memory.size)
        require(offset + size <= obj.size)
        require(memory.gpu in obj.team, INVALID_DEVICE)
        require(not obj.handle_types or bool(memory.handle_types))
        for other in obj.bindings:
            overlaps = (
                other.offset < offset + size and offset < other.offset + other.size
            )
            require(other.gpu != memory.gpu or not overlaps)
        obj.bindings.append(Binding(memory.gpu, offset, size, memory))

    def unbind(self, obj: Multicast, gpu: int, offset: int, size: int) -> None:
        """cuMulticastUnbind: exactly what was bound, and before its memory is gone."""
        for binding in obj.bindings:
            if (binding.gpu, binding.offset, binding.size) == (gpu, offset, size):
                obj.bindings.remove(binding)
                if not binding.memory.alive:
                    self.violations.append("memory was freed before it was unbound")
                    raise DriverError(INVALID_VALUE)
                return
        self.violations.append(
            f"unbind of ({gpu}, {offset}, {size}), which is not bound"
        )
        raise DriverError(INVALID_VALUE)

    def counts(self) -> dict[str, int]:
        """What is alive, over all processes."""
        return {
            "handles": sum(n for p in self.processes for _, n in p.handles.values()),
            "mappings": sum(len(p.mappings) for p in self.processes),
            "ranges": sum(len(p.ranges) for p in self.processes),
            "descriptors": len(self.exports),
            "objects": len(self.objects),
            "slots": self.slots_in_use,
        }
