"""The driver's entry points on the model: one function a call, named as the call is.

Each takes (machine, process, request) and returns an Answer, or raises DriverError.
"""

from __future__ import annotations

from collections.abc import Callable

from . import model
from .model import DriverError, Machine, Memory, Multicast, Process, require
from .wire import Answer, Request

_ATTRIBUTES = {
    16: "multiprocessors",
    75: "major",
    76: "minor",
    102: "vmm",
    103: "posix_fd",
    128: "fabric",
    132: "multicast",
}
_READ_WRITE = 3

CALLS: dict[str, Callable[[Machine, Process, Request], Answer]] = {}


def _call(function: Callable[..., Answer]) -> Callable[..., Answer]:
    CALLS[function.__name__] = function
    return function


@_call
def cuInit(machine, process, request):
    return Answer()


@_call
def cuDeviceGetCount(machine, process, request):
    return Answer(values=(len(process.visible),))


@_call
def cuDeviceGet(machine, process, request):
    process.gpu(request.args[0])
    return Answer(values=(request.args[0],))


@_call
def cuDeviceGetAttribute(machine, process, request):
    gpu = process.gpu(request.args[1])
    config = machine.config
    value = {
        "multiprocessors": config.multiprocessors,
        "major": config.capability[0],
        "minor": config.capability[1],
        "vmm": True,
        "posix_fd": config.posix_fd_attribute,
        "fabric": config.fabric_attribute,
        "multicast": config.multicast_attribute[gpu],
    }[_ATTRIBUTES[request.args[0]]]
    return Answer(values=(int(value),))


@_call
def cuDeviceGetUuid(machine, process, request):
    return Answer(data=bytes([0xFA, 0xCE, process.gpu(request.args[0])]) * 5 + b"\x01")


@_call
def cuDeviceCanAccessPeer(machine, process, request):
    pair = process.gpu(request.args[0]), process.gpu(request.args[1])
    return Answer(values=(int(_reaches(machine, *pair)),))


def _reaches(machine: Machine, gpu: int, peer: int) -> bool:
    allowed = machine.config.peer_access
    return gpu == peer or allowed is None or (gpu, peer) in allowed


@_call
def cuDevicePrimaryCtxRetain(machine, process, request):
    gpu = process.gpu(request.args[0])
    process.contexts[gpu] = process.contexts.get(gpu, 0) + 1
    return Answer(values=(0x1000 + request.args[0],))


@_call
def cuDevicePrimaryCtxRelease(machine, process, request):
    gpu = process.gpu(request.args[0])
    require(process.contexts.get(gpu, 0) > 0)
    process.contexts[gpu] -= 1
    return Answer()


@_call
def cuCtxGetCurrent(machine, process, request):
    return Answer()


@_call
def cuCtxSetCurrent(machine, process, request):
    return Answer()


@_call
def cuCtxSynchronize(machine, process, request):
    return Answer()


@_call
def cuMemGetInfo(machine, process, request):
    gpu = process.gpu(request.args[0])
    total = machine.config.gpu_bytes
    return Answer(values=(total - machine.used.get(gpu, 0), total))


@_call
def cuMemGetAllocationGranularity(machine, process, request):
    process.gpu(request.args[0])
    return Answer(values=(machine.config.granularity,))


@_call
def cuMemCreate(machine, process, request):
    size, ordinal, handle_types = request.args[:3]
    memory = machine.create_memory(process.gpu(ordinal), size, handle_types)
    return Answer(values=(machine.add_handle(process, memory),))


@_call
def cuMemRelease(machine, process, request):
    process.object(request.args[0])
    machine.release(process, request.args[0])
    return Answer()


@_call
def cuMemExportToShareableHandle(machine, process, request):
    obj, kind = process.object(request.args[0]), request.args[1]
    require(bool(obj.handle_types & kind))
    if kind == model.FABRIC:
        data = obj.id.to_bytes(8, "little") + process.domain.encode()
        return Answer(data=data.ljust(64, b"\0"))
    return Answer(fd=machine.export_fd(obj).detach())


@_call
def cuMemImportFromShareableHandle(machine, process, request):
    if request.args[0] == model.FABRIC:
        obj = machine.import_fabric(process, request.data)
    else:
        obj = machine.import_fd(request.fd)
    return Answer(values=(machine.add_handle(process, obj),))


@_call
def cuMemAddressReserve(machine, process, request):
    address, size = request.args[:2]
    require(size > 0 and size % machine.config.granularity == 0)
    process.ranges[address] = size
    return Answer()


@_call
def cuMemAddressFree(machine, process, request):
    address, size = request.args[:2]
    require(process.ranges.get(address) == size)
    require(address not in process.mappings)
    del process.ranges[address]
    return Answer()


@_call
def cuMemMap(machine, process, request):
    address, size, offset, handle = request.args[:4]
    obj = process.object(handle)
    require(offset == 0 and 0 < size <= obj.size)
    require(process.ranges.get(address, 0) >= size and address not in process.mappings)
    process.mappings[address] = model.Mapping(obj, size)
    machine.hold(obj)
    return Answer(fd=obj.memfd if isinstance(obj, Memory) else -1)


@_call
def cuMemUnmap(machine, process, request):
    address, size = request.args[:2]
    mapping = process.mappings.get(address)
    require(mapping is not None and mapping.size == size)
    del process.mappings[address]
    machine.drop(mapping.obj)
    return Answer()


@_call
def cuMemSetAccess(machine, process, request):
    address, size, flags, count = request.args[:4]
    _, mapping = process.mapping_at(address, size)
    require(mapping.size == size)
    require(count > 0)
    mask = int.from_bytes(request.data, "little")
    for ordinal in (bit for bit in range(512) if mask >> bit & 1):
        gpu = process.gpu(ordinal)
        if isinstance(mapping.obj, Memory):
            require(
                _reaches(machine, gpu, mapping.obj.gpu), model.PEER_ACCESS_UNSUPPORTED
            )
        else:
            require(gpu in mapping.obj.team, model.INVALID_DEVICE)
        mapping.access.add(gpu)
    # The host may touch memory, but never a multicast address: only multimem can.
    return Answer(
        values=(int(isinstance(mapping.obj, Memory) and flags == _READ_WRITE),)
    )


def _touch(machine, process, request):
    address, size = request.args[:2]
    _, mapping = process.mapping_at(address, size)
    require(isinstance(mapping.obj, Memory) and bool(mapping.access))
    return Answer()


for _name in ("cuMemsetD8", "cuMemcpyDtoH", "cuMemcpyHtoD"):
    CALLS[_name] = _touch


def _accept(machine, process, request):
    return Answer()


for _name in (
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuEventQuery",
    "cuMemHostAlloc",
    "cuMemFreeHost",
):
    CALLS[_name] = _accept


@_call
def cuLaunchKernelEx(machine, process, request):
    rank, grid, cluster, threads = request.args[:4]
    name = request.data.rstrip(b"\0").decode()
    require(grid > 0 and grid % cluster == 0 and threads % 32 == 0)
    machine.launches.append(model.Launch(name, rank, grid, cluster))
    return Answer()


@_call
def cuMulticastGetGranularity(machine, process, request):
    num_devices, option = request.args[:2]
    require(num_devices > 0)
    config = machine.config
    unit = config.multicast_recommended if option else config.multicast_granularity
    return Answer(values=(unit,))


@_call
def cuMulticastCreate(machine, process, request):
    num_devices, size, handle_types = request.args[:3]
    require(
        any(machine.config.multicast_attribute[gpu] for gpu in process.visible),
        model.NOT_SUPPORTED,
    )
    obj = machine.create_multicast(size, num_devices, handle_types)
    return Answer(values=(machine.add_handle(process, obj),))


def _multicast(process: Process, handle: int) -> Multicast:
    obj = process.object(handle)
    if not isinstance(obj, Multicast):
        raise DriverError(model.INVALID_VALUE)
    return obj


@_call
def cuMulticastAddDevice(machine, process, request):
    machine.join(_multicast(process, request.args[0]), process.gpu(request.args[1]))
    return Answer()


@_call
def cuMulticastBindMem(machine, process, request):
    handle, offset, memory_handle, memory_offset, size = request.args[:5]
    memory = process.object(memory_handle)
    require(isinstance(memory, Memory) and memory_offset == 0)
    machine.bind(_multicast(process, handle), offset, memory, size)
    return Answer()


@_call
def cuMulticastUnbind(machine, process, request):
    handle, ordinal, offset, size = request.args[:4]
    machine.unbind(_multicast(process, handle), process.gpu(ordinal), offset, size)
    return Answer()


def waits_for(process: Process, request: Request) -> Multicast | None:
    """The multicast object whose team a call waits for, if it is such a call."""
    handle = {"cuMulticastBindMem": 0, "cuMemMap": 3}.get(request.call)
    if handle is None:
        return None
    entry = process.handles.get(request.args[handle])
    return entry[0] if entry and isinstance(entry[0], Multicast) else None
