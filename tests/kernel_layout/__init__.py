"""The kernels' layout headers, compiled for the host and called from tests."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

_HERE = Path(__file__).parent
FFI = _HERE.parents[1] / "ffi"


class Reducer(IntEnum):
    PUSH = 0
    PULL = 1
    MULTICAST = 2


class Collective(IntEnum):
    REDUCE_SCATTER = 0
    ALL_REDUCE = 1


class FaultKind(IntEnum):
    NONE = 0
    TIMEOUT = 1
    OTHER_CALL = 2
    WRONG_RANK = 3
    PEER_LOST = 4


class Awaited(IntEnum):
    NOTHING = 0
    PREVIOUS_LAUNCH = 1
    PARTIAL = 2
    RESULT = 3


class _RowMap(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32) for name in ("batch", "rows_per_batch", "shard_rows")
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("rows", _RowMap),
        *(
            (name, ctypes.c_uint32)
            for name in (
                "ranks",
                "n",
                "k",
                "float32_output",
                "reducer",
                "collective",
                "tile_m",
                "tile_n",
                "cluster",
                "m_groups_per_band",
                "workspace_all_reduce",
            )
        ),
        ("payload_bytes", ctypes.c_uint64),
    ]


class _Addresses(ctypes.Structure):
    _fields_ = [
        ("workspace", ctypes.POINTER(ctypes.c_uint64)),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "multicast_workspace",
                "output",
                "axis_index",
                "abort_word",
                "fault_record",
            )
        ),
    ]


class Sizes(ctypes.Structure):
    """What a call needs of a workspace, and where its parts lie there."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "nbytes",
                "flags_offset",
                "result_flags_offset",
                "data_offset",
                "result_offset",
                "capacity_tiles",
                "tiles",
                "data_bytes",
                "fits",
            )
        ),
        ("data_pitch", ctypes.c_uint32),
    ]


@functools.cache
def _library() -> ctypes.CDLL:
    sources = [
        _HERE / "layout.cc",
        FFI / "base/address.h",
        *sorted(FFI.glob("kernels/*/*.h")),
    ]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    directory = Path(tempfile.gettempdir()) / f"jax_symm_layout_{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    library = directory / f"{digest.hexdigest()[:16]}.so"
    if not library.exists():
        compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
        built = library.with_suffix(f".{os.getpid()}.so")
        flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(
            [compiler, *flags, f"-I{FFI}", _HERE / "layout.cc", "-o", built], check=True
        )
        built.replace(library)
    functions = ctypes.CDLL(str(library))
    functions.params_nbytes.restype = ctypes.c_uint64
    functions.pack_verdict.restype = ctypes.c_uint64
    return functions


@dataclass(frozen=True)
class Call:
    """One fused call as all ranks make it.

    `shard_rows` defaults to an equal division of `rows` (of each batch);
    `payload_bytes` and `workspace_all_reduce` describe the workspace: by default it
    suits this call.
    """

    ranks: int
    rows: int
    n: int
    k: int = 4
    batch: int = 1
    shard_rows: int = 0
    float32_output: bool = False
    reducer: Reducer = Reducer.PUSH
    collective: Collective = Collective.REDUCE_SCATTER
    tile: tuple[int, int, int] = (64, 64, 1)
    m_groups_per_band: int = 8
    payload_bytes: int = 0
    workspace_all_reduce: bool | None = None

    @property
    def total_rows(self) -> int:
        return self.batch * self.rows

    @property
    def rows_per_shard(self) -> int:
        return self.shard_rows or -(-self.rows // self.ranks)

    @property
    def payload(self) -> int:
        own = self.batch * self.ranks * self.rows_per_shard * self.n * 2
        return self.payload_bytes or own

    def _struct(self) -> _Call:
        all_reduce = self.workspace_all_reduce
        if all_reduce is None:
            all_reduce = self.collective == Collective.ALL_REDUCE
        return _Call(
            _RowMap(self.batch, self.rows, self.rows_per_shard),
            self.ranks,
            self.n,
            self.k,
            self.float32_output,
            self.reducer,
            self.collective,
            *self.tile,
            self.m_groups_per_band,
            all_reduce,
            self.payload,
        )

    def sizes(self) -> Sizes:
        sizes = Sizes()
        _library().sizes_of(ctypes.byref(self._struct()), ctypes.byref(sizes))
        return sizes

    def params(
        self,
        *,
        rank: int,
        call_hash: int,
        timeout_ns: int,
        workspaces: Sequence[int],
        multicast_workspace: int,
        output: int,
        axis_index: int,
        abort_word: int,
        fault_record: int,
    ) -> bytes:
        """KernelParams as the kernel reads them."""
        buffer = ctypes.create_string_buffer(_library().params_nbytes())
        addresses = _Addresses(
            (ctypes.c_uint64 * len(workspaces))(*workspaces),
            multicast_workspace,
            output,
            axis_index,
            abort_word,
            fault_record,
        )
        _library().fill_params(
            ctypes.byref(self._struct()),
            ctypes.c_uint32(rank),
            ctypes.c_uint32(call_hash),
            ctypes.c_uint64(timeout_ns),
            ctypes.byref(addresses),
            buffer,
        )
        return buffer.raw

    def visits(self) -> np.ndarray:
        """(m, n) of each tile in the order of visits, [tiles, 2]."""
        call = ctypes.byref(self._struct())
        count = _library().visits(call, None)
        assert count > 0, f"no such tile: {self.tile}"
        tiles = np.empty((count, 2), np.uint32)
        _library().visits(call, tiles.ctypes.data_as(ctypes.c_void_p))
        return tiles

    def places(self, source: int, workspaces: Sequence[int]) -> dict[str, np.ndarray]:
        """Owner, shard row, partial address and result offset of every row."""
        names = ("owner", "shard_row", "partial", "result")
        columns = {name: np.empty(self.total_rows, np.uint64) for name in names}
        _library().places(
            ctypes.byref(self._struct()),
            ctypes.c_uint32(source),
            (ctypes.c_uint64 * len(workspaces))(*workspaces),
            *(column.ctypes.data_as(ctypes.c_void_p) for column in columns.values()),
        )
        return columns

    def owns(self, rank: int, begin: int, end: int) -> tuple[bool, bool]:
        """Whether `rank` owns any, and all, of the rows [begin, end)."""
        rows = ctypes.byref(_RowMap(self.batch, self.rows, self.rows_per_shard))
        arguments = (rows, *(ctypes.c_uint32(x) for x in (rank, begin, end)))
        library = _library()
        return bool(library.owns_any(*arguments)), bool(library.owns_all(*arguments))


@dataclass(frozen=True)
class Verdict:
    kind: FaultKind
    reporter: int
    blamed: int
    epoch: int

    def pack(self) -> int:
        return _library().pack_verdict(
            self.kind, self.reporter, self.blamed, ctypes.c_uint64(self.epoch)
        )

    @classmethod
    def unpack(cls, word: int) -> Verdict:
        fields = (ctypes.c_uint64 * 4)()
        _library().unpack_verdict(ctypes.c_uint64(word), fields)
        return cls(FaultKind(fields[0]), fields[1], fields[2], fields[3])
