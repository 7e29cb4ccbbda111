"""The end of a workspace on GPUs, over the fake driver: closed, dropped, failed, lost."""

import gc
import multiprocessing
import threading

import jax
import pytest
import rank_rigs

from jax_symm import _native
from jax_symm.errors import SymmPeerLostError, SymmStateError, SymmTimeoutError
from jax_symm.ops import _rules

pytestmark = pytest.mark.requires("kernels")

RUNNING, FAILED = 600, 700  # what the driver says of an event
HOUR_NS = 3600 * 10**9


class Lone:
    """A workspace of one rank that alone holds its memory."""

    def __init__(self, fake_driver):
        self.native = _native.module()
        self.backend = self.native.cuda_backend(fake_driver)
        self.before = self.native.ledger()
        nbytes = self.native.cuda_workspace_nbytes(1, 1 << 16, True)
        unit = self.backend.granularity(0)
        memory = self.backend.create(
            0, -(-nbytes // unit) * unit, self.native.HandleType.NONE
        )
        mapping = self.backend.map(memory, [0])
        self.workspace = self.native.open_cuda_workspace(
            self.backend,
            name="lone",
            nonce=1,
            timeout_ns=10**9,
            world_size=1,
            capacity_bytes=1 << 16,
            all_reduce=False,
            axis="tp",
            rank_labels=[["rank 0"]],
            locals=[self.native.CudaLocalRank(0, 0, 0, [mapping])],
        )
        mapping.release()
        memory.release()
        self._arrays = [
            jax.block_until_ready(jax.numpy.zeros(shape, jax.numpy.bfloat16))
            for shape in ((8, 8), (8, 8), (8, 8))
        ]
        self._index = jax.block_until_ready(jax.numpy.zeros((), jax.numpy.int32))

    def submit(self, op="reduce_scatter", ranks=1, device=0):
        x, w, output = (a.unsafe_buffer_pointer() for a in self._arrays)
        operand = jax.ShapeDtypeStruct((8, 8), jax.numpy.bfloat16)
        problem = _rules.make_problem(op, operand, operand, ranks)
        self.workspace.submit(
            device_ordinal=device,
            problem=rank_rigs.native_problem(problem, "kn"),
            reducer="push",
            x=x,
            w=w,
            output=output,
            axis_index=self._index.unsafe_buffer_pointer(),
            call=1,
            stream=0,
        )

    def held(self):
        """Allocations and mappings that are there because of it."""
        now = self.native.ledger()
        return [now[key] - self.before[key] for key in ("allocations", "mappings")]

    def quarantined(self):
        return self.native.ledger()["quarantined"] - self.before["quarantined"]


@pytest.fixture
def lone(fake_driver):
    made = Lone(fake_driver)
    yield made
    made.workspace = None
    gc.collect()
    made.native.release_abandoned()


def script(machine, *answers):
    machine.script(
        faults=[("raw", "cuEventQuery", i + 1, a) for i, a in enumerate(answers)]
    )


def test_close_lets_the_memory_go_while_the_object_stays(lone):
    lone.submit()
    assert lone.held() == [1, 1]
    lone.workspace.close(HOUR_NS)
    assert lone.held() == [0, 0]
    assert lone.workspace.calls() == [("peer", 0, 0, 1), ("multicast", 0, 0, 0)]
    with pytest.raises(SymmStateError, match="'lone' is closed"):
        lone.submit()
    lone.workspace.close(HOUR_NS)


def test_close_waits_for_the_launch(lone, fake_machine):
    lone.submit()
    script(fake_machine, RUNNING, RUNNING)
    lone.workspace.close(HOUR_NS)
    queries = [c for _, c in fake_machine.report()["trace"] if c == "cuEventQuery"]
    assert len(queries) > 2
    assert lone.held() == [0, 0]


def test_a_device_in_error_does_not_hold_close(lone, fake_machine):
    lone.submit()
    script(fake_machine, *[FAILED] * 8)
    lone.workspace.close(HOUR_NS)
    assert lone.held() == [0, 0]


def never_ends(fake_driver):
    lone = Lone(fake_driver)
    lone.submit()
    with pytest.raises(SymmTimeoutError, match=r"launches had not ended 0.01 s"):
        lone.workspace.close(10**7)
    lone.workspace = None
    gc.collect()
    assert lone.held() == [1, 1]
    assert lone.quarantined() == 1


def test_a_launch_that_never_ends_keeps_its_memory(fake_machine, fake_driver):
    """In a process of its own: what is in quarantine goes with the process."""
    script(fake_machine, *[RUNNING] * 100_000)
    child = multiprocessing.get_context("spawn").Process(
        target=never_ends, args=(fake_driver,)
    )
    child.start()
    child.join(120)
    assert child.exitcode == 0


def test_a_finaliser_unmaps_nothing(lone):
    lone.submit()
    lone.workspace = None
    gc.collect()
    assert lone.held() == [1, 1]
    assert lone.native.abandoned_count() > 0
    lone.native.release_abandoned()
    assert lone.held() == [0, 0]


@pytest.mark.parametrize("how", ["close", "release", "drop"])
def test_other_threads_run_while_memory_is_unmapped(lone, fake_machine, how):
    """The device may be waiting for a launch that one of them is about to make."""
    unit = lone.backend.granularity(0)
    memory = lone.backend.create(0, unit, lone.native.HandleType.NONE)
    held = [lone.backend.map(memory, [0])]
    fake_machine.script(faults=[("raw", "cuMemUnmap", 1, "hang")])

    def answer():
        while not fake_machine.report()["hung"]:
            pass
        fake_machine.wake()

    other = threading.Thread(target=answer)
    other.start()
    if how == "close":
        lone.workspace.close(HOUR_NS)
    elif how == "release":
        held[0].release()
    else:
        held.clear()
    other.join()
    held.clear()


def test_a_lost_process_ends_the_workspace_before_the_next_launch(lone):
    lone.workspace.check()
    lone.workspace.abort(0, 0, "rank 0: its connection ended")
    with pytest.raises(SymmPeerLostError, match="rank 0: its connection ended; close"):
        lone.workspace.check()
    with pytest.raises(SymmPeerLostError, match="rank 0: its connection ended; close"):
        lone.submit()
    assert sum(count for *_, count in lone.workspace.calls()) == 0


def test_calls_of_another_program(lone):
    with pytest.raises(SymmStateError, match="opened without all_reduce; add it"):
        lone.submit("all_reduce")
    with pytest.raises(SymmStateError, match="has 2 devices in the program, but 1"):
        lone.submit(ranks=2)
    lone.submit()  # those were alike on all ranks
    with pytest.raises(SymmStateError, match="GPU 3 .*does not have this device"):
        lone.submit(device=3)
    with pytest.raises(SymmStateError, match="GPU 3 .*does not have this device"):
        lone.workspace.check()


def test_sizes_that_no_memory_has(lone):
    for capacity in (2**47, 2**63):
        with pytest.raises(ValueError, match=f"got a capacity of {capacity} bytes"):
            lone.native.cuda_workspace_nbytes(8, capacity, True)
    with pytest.raises(ValueError, match="got 73 ranks, expected 1 to 72"):
        lone.native.cuda_workspace_nbytes(73, 1024, True)
    assert all(lone.native.cuda_workspace_nbytes(r, 2**46, True) for r in (1, 72))
