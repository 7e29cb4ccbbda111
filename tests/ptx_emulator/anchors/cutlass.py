"""Builds CUTLASS GEMMs and asks CUTLASS's own host code how to launch them.

The compiled files are kept outside the source tree (`JAX_SYMM_TEST_CACHE`, else the
user's cache), under a name that depends on everything that went into them.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ptx_emulator import tensor_map

SOURCE = Path(__file__).with_name("cutlass_gemm.cu")
PROGRAM, PTX = "gemm", "gemm.ptx"
MAP_BYTES = 128
FLAGS = ("-std=c++17", "--expt-relaxed-constexpr", "-O3")
DTYPE_NAMES = {code: name for name, (code, _) in tensor_map.DTYPES.items()}


@dataclass(frozen=True)
class GemmAnchor:
    """One instantiation of cutlass_gemm.cu; k is tiled by 64."""

    name: str
    arch: int
    tile_m: int
    tile_n: int
    cluster: tuple[int, int]
    two_sm: bool = False
    mn_major: bool = False

    @property
    def macros(self) -> tuple[str, ...]:
        values = {
            "ARCH": self.arch,
            "TILE_M": self.tile_m,
            "TILE_N": self.tile_n,
            "CLUSTER_M": self.cluster[0],
            "CLUSTER_N": self.cluster[1],
            "TWO_SM": int(self.two_sm),
            "MN_MAJOR": int(self.mn_major),
        }
        return tuple(f"-D{name}={value}" for name, value in values.items())


SM100_ONE_SM = GemmAnchor("sm100 1-SM 128x128", 100, 128, 128, (1, 1))
SM100_TWO_SM = GemmAnchor("sm100 2-SM 256x128", 100, 256, 128, (2, 1), two_sm=True)
SM100_MULTICAST = GemmAnchor("sm100 2-SM 4x2", 100, 256, 256, (4, 2), two_sm=True)
SM100_MN_MAJOR = GemmAnchor("sm100 MN-major", 100, 128, 128, (1, 1), mn_major=True)
SM100_M64 = GemmAnchor("sm100 1-SM 64x128", 100, 64, 128, (1, 1))
SM100_PAIR_M128 = GemmAnchor("sm100 2-SM 128x128", 100, 128, 128, (2, 1), two_sm=True)
SM90_WGMMA = GemmAnchor("sm90 wgmma 128x128", 90, 128, 128, (2, 1))
ANCHORS = (
    SM100_ONE_SM,
    SM90_WGMMA,
    SM100_TWO_SM,
    SM100_MULTICAST,
    SM100_MN_MAJOR,
    SM100_M64,
    SM100_PAIR_M128,
)


@dataclass(frozen=True)
class BuiltGemm:
    ptx: str
    program: Path


@dataclass(frozen=True)
class GemmLaunch:
    """A launch as CUTLASS computes it; `parameters` has the emulator's tensor maps."""

    parameters: bytes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int


def _cache_root() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("JAX_SYMM_TEST_CACHE", default / "jax_symm_tests"))


def _cutlass_source() -> Path:
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "cutlass_library: pip install nvidia-cutlass==4.2.0.0"
        )
    return Path(spec.origin).parent / "source"


def _nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        raise FileNotFoundError("nvcc is not on the PATH")
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One compilation at a time: each takes 3 GB of memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(anchor: GemmAnchor) -> BuiltGemm:
    """Compiles the anchor, or takes it from the cache: PTX and launch program."""
    cutlass = _cutlass_source()
    version = (cutlass / "include/cutlass/version.h").read_text()
    compiler = subprocess.run(
        [_nvcc(), "--version"], check=True, capture_output=True, text=True
    ).stdout
    what = (SOURCE.read_text(), version, compiler, *FLAGS, *anchor.macros)
    key = hashlib.sha256("\0".join(what).encode()).hexdigest()[:24]
    target = _cache_root() / key
    with _locked(_cache_root() / "lock"):
        if not target.is_dir():
            _compile(anchor, cutlass, target)
    return BuiltGemm((target / PTX).read_text(), target / PROGRAM)


def _compile(anchor: GemmAnchor, cutlass: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        kept = Path(scratch)
        command = [
            _nvcc(),
            *FLAGS,
            *anchor.macros,
            f"-gencode=arch=compute_{anchor.arch}a,code=sm_{anchor.arch}a",
            f"-I{cutlass / 'include'}",
            f"-I{cutlass / 'tools/util/include'}",
            # Where the wheels of the toolkit keep the runtime that nvcc links.
            f"-L{Path(_nvcc()).resolve().parents[1] / 'lib'}",
            "--keep",
            f"--keep-dir={kept}",
            "-o",
            str(kept / PROGRAM),
            str(SOURCE),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
        finished = kept / "finished"
        finished.mkdir()
        (kept / PROGRAM).rename(finished / PROGRAM)
        (kept / SOURCE.with_suffix(".ptx").name).rename(finished / PTX)
        finished.rename(target)


def _encode(words: list[int]) -> bytes:
    """One cuTensorMapEncodeTiled request, as cutlass_gemm.cu prints it."""
    dtype, rank, address, interleave, swizzle, fill, *sizes = words
    if interleave or fill:
        raise ValueError(
            f"tensor map: interleave {interleave}, fill {fill}, expected 0"
        )
    dims, strides = sizes[:rank], sizes[rank : 2 * rank - 1]
    box, element_strides = sizes[2 * rank - 1 : -rank], sizes[-rank:]
    return tensor_map.encode_tensor_map(
        address,
        dims,
        strides,
        box,
        dtype=DTYPE_NAMES[dtype],
        swizzle=tensor_map.SWIZZLES[swizzle],
        element_strides=element_strides,
    )


def launch(
    built: BuiltGemm,
    sizes: tuple[int, int, int],
    addresses: tuple[int, int, int],
    sm_count: int,
) -> GemmLaunch:
    """The launch of D = A * B for (m, n, k) and the device addresses of A, B and D.

    `sm_count` bounds the grid of a persistent kernel.
    """
    arguments = [str(value) for value in (*sizes, *addresses, sm_count)]
    done = subprocess.run([built.program, *arguments], check=True, capture_output=True)
    parameters, shape = done.stdout, []
    for index, line in enumerate(done.stderr.decode().splitlines()):
        kind, *words = line.split()
        numbers = [int(word) for word in words]
        if kind == "launch":
            shape = numbers
            continue
        placeholder = f"tensor map {index}".encode().ljust(MAP_BYTES, b"\0")
        parameters = parameters.replace(placeholder, _encode(numbers))
    return GemmLaunch(
        parameters,
        (shape[0], shape[1], shape[2]),
        (shape[3], shape[4], shape[5]),
        (shape[6], shape[7], 1),
        shape[8],
    )
