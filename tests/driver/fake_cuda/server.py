"""The fake driver's server: one machine, many processes, faults by script.

Run as `python -m fake_cuda.server SOCKET`. The library connects to SOCKET; a test
connects to SOCKET + ".control" and calls the methods of Control by name.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import heapq
import itertools
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from .calls import CALLS, waits_for
from .model import Config, DriverError, Machine, Multicast, Process
from .wire import REQUEST_BYTES, Answer, Request, pack_answer, parse_request


@dataclasses.dataclass
class Fault:
    """What happens at the `nth` time that process `tag` makes `call`.

    `action`: an int is the CUresult to answer; "delay:S" answers S seconds late;
    "hang" never answers; "kill" is SIGKILL to the process.
    """

    tag: str
    call: str
    nth: int
    action: int | str


class Client:
    """A connection of a process. Several of them are one process: calls may overlap."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.process: Process | None = None
        self.lifeline = False


class Server:
    """The event loop."""

    def __init__(self, path: str):
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.machine = Machine(self.call_later)
        self.faults: list[Fault] = []
        self.trace: list[tuple[str, str]] = []
        self.made: dict[tuple[str, str], int] = {}
        self.hung: list[tuple[Client, Request]] = []
        self.premature_waits = 0
        self._listen(path)

    def _listen(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen(64)
        self._watch(listener, lambda: self._accept(listener))
        control = connection.Listener(path + ".control", "AF_UNIX", backlog=8)
        # The listener's own socket is what can be watched.
        self._watch(control._listener._socket, lambda: self._accept_control(control))  # type: ignore[attr-defined]

    def _watch(self, source: Any, react: Callable[[], None]) -> None:
        self.selector.register(source, selectors.EVENT_READ, react)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Runs `action` in `delay_s` seconds, at once when that is 0."""
        if delay_s <= 0:
            action()
            return
        heapq.heappush(
            self.timers, (time.monotonic() + delay_s, next(self.order), action)
        )

    def run(self) -> None:
        """Serves until the process is ended."""
        while True:
            wait = None
            if self.timers:
                wait = max(0.0, self.timers[0][0] - time.monotonic())
            for key, _ in self.selector.select(wait):
                # A reaction may have closed a source that is also ready.
                if key.fileobj in self.selector.get_map():
                    key.data()
            while self.timers and self.timers[0][0] <= time.monotonic():
                heapq.heappop(self.timers)[2]()

    # Processes.

    def _accept(self, listener: socket.socket) -> None:
        client = Client(listener.accept()[0])
        self._watch(client.sock, lambda: self._read(client))

    def _read(self, client: Client) -> None:
        descriptors = array.array("i")
        try:
            packet, ancillary, _, _ = client.sock.recvmsg(
                REQUEST_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            packet, ancillary = b"", []
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        if not packet:
            self._lost(client)
            return
        request = parse_request(packet, descriptors[0] if descriptors else -1)
        try:
            self._hello(client, request) if request.call == "hello" else self._begin(
                client, request
            )
        finally:
            for fd in descriptors:
                os.close(fd)

    def _hello(self, client: Client, request: Request) -> None:
        """args: pid, whether this connection's end is the end of the process."""
        pid, client.lifeline = request.args[0], bool(request.args[1])
        tag, visible, domain = request.data.rstrip(b"\0").decode().split("|")
        if client.lifeline:
            gpus = range(self.machine.config.gpus)
            order = [int(g) for g in visible.split(",") if g] if visible else list(gpus)
            client.process = Process(tag, pid, order, domain or "domain0")
            self.machine.processes.append(client.process)
        else:
            client.process = next(p for p in self.machine.processes if p.pid == pid)
        self._answer(client, Answer())

    def _lost(self, client: Client) -> None:
        self.selector.unregister(client.sock)
        client.sock.close()
        self.hung = [(c, r) for c, r in self.hung if c is not client]
        if client.lifeline and client.process in self.machine.processes:
            self.machine.bury(client.process)

    # Calls.

    def _begin(self, client: Client, request: Request) -> None:
        process = client.process
        assert process is not None
        key = (process.tag, request.call)
        self.trace.append(key)
        self.made[key] = self.made.get(key, 0) + 1
        target = waits_for(process, request)
        if target is not None and not target.complete:
            self.premature_waits += 1
        for fault in self.faults:
            if (fault.tag, fault.call, fault.nth) == (*key, self.made[key]):
                self._inject(client, request, fault)
                return
        self._execute(client, request)

    def _inject(self, client: Client, request: Request, fault: Fault) -> None:
        assert client.process is not None
        if isinstance(fault.action, int):
            self._answer(client, Answer(fault.action))
        elif fault.action == "hang":
            self.hung.append((client, request))
        elif fault.action == "kill":
            os.kill(client.process.pid, signal.SIGKILL)
        else:
            seconds = float(fault.action.removeprefix("delay:"))
            request.fd = os.dup(request.fd) if request.fd >= 0 else -1
            self.call_later(seconds, lambda: self._execute(client, request))

    def _execute(self, client: Client, request: Request) -> None:
        process = client.process
        assert process is not None
        target = waits_for(process, request)
        if target is not None and target.status is None:
            target.waiters.append(lambda: self._execute(client, request))
            return
        try:
            if target is not None and target.status:
                raise DriverError(target.status)
            answer = CALLS[request.call](self.machine, process, request)
        except DriverError as error:
            answer = Answer(error.result)
        self._answer(client, answer)
        if request.call == "cuMemExportToShareableHandle" and answer.fd >= 0:
            self._watch_export(answer.fd)
            os.close(answer.fd)

    def _watch_export(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        kept, _ = self.machine.exports[inode]

        def closed() -> None:
            self.selector.unregister(kept)
            self.machine.close_export(inode)

        self._watch(kept, closed)

    def _answer(self, client: Client, answer: Answer) -> None:
        fds = [answer.fd] if answer.fd >= 0 else []
        with contextlib.suppress(BrokenPipeError, OSError):
            socket.send_fds(client.sock, [pack_answer(answer)], fds)

    # Control.

    def _accept_control(self, listener: connection.Listener) -> None:
        conn = listener.accept()

        def serve() -> None:
            try:
                name, arguments = conn.recv()
            except (EOFError, ConnectionResetError):
                self.selector.unregister(conn)
                conn.close()
                return
            conn.send(getattr(Control(self), name)(**arguments))

        self._watch(conn, serve)


class Control:
    """What a test may ask of the server."""

    def __init__(self, server: Server):
        self._server = server

    def configure(self, **fields: Any) -> None:
        """Changes fields of Config."""
        self._server.machine.config = dataclasses.replace(
            self._server.machine.config, **fields
        )

    def reset(self) -> None:
        """The default machine, no faults, empty books. Processes and objects stay."""
        self._server.machine.config = Config()
        self._server.machine.violations.clear()
        self._server.machine.slots_ever = 0
        self.script([])

    def script(self, faults: list[tuple[str, str, int, int | str]]) -> None:
        """Sets the faults to come; calls are counted from now on."""
        server = self._server
        server.faults = [Fault(*fault) for fault in faults]
        server.trace.clear()
        server.made.clear()
        server.machine.launches.clear()
        server.premature_waits = 0

    def counts(self) -> dict[str, int]:
        """What is alive over all processes."""
        return self._server.machine.counts()

    def report(self) -> dict[str, Any]:
        """What happened since the last script."""
        server = self._server
        return {
            "trace": list(server.trace),
            "premature_waits": server.premature_waits,
            "violations": list(server.machine.violations),
            "slots_ever": server.machine.slots_ever,
            "launches": [dataclasses.astuple(one) for one in server.machine.launches],
            "hung": len(server.hung),
            "processes": [p.tag for p in server.machine.processes],
        }

    def wake(self, result: int | None = None) -> int:
        """Answers every call that hangs: with `result`, or by doing it after all."""
        server = self._server
        hung, server.hung = server.hung, []
        for client, request in hung:
            if result is None:
                server._execute(client, request)
            else:
                server._answer(client, Answer(result))
        return len(hung)

    def multimem_store(self, tag: str, address: int, data: bytes) -> int:
        """Stores through a multicast address of a process, as its GPU would.

        Returns:
          How many devices it reached; -1 when a member of the team has nothing bound
          there, which is a device fault.
        """
        machine = self._server.machine
        process = next(p for p in machine.processes if p.tag == tag and p.mappings)
        base, mapping = process.mapping_at(address, len(data))
        obj = mapping.obj
        assert isinstance(obj, Multicast)
        reached = set()
        for binding in obj.bindings:
            start = address - base - binding.offset
            if start >= 0 and start + len(data) <= binding.size:
                os.pwrite(binding.memory.memfd, data, start)
                reached.add(binding.gpu)
        return len(reached) if reached == set(obj.team) else -1


def main() -> None:
    """Serves on the path in argv, and ends with the parent that started it."""
    path = sys.argv[1]
    server = Server(path)
    print("ready", flush=True)
    server._watch(sys.stdin, lambda: sys.exit(0))
    server.run()


if __name__ == "__main__":
    main()
