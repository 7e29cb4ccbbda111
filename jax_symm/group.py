"""Groups: which devices along a mesh axis form a group, their order, whose they are.

Pure: a device is anything with `id`, `process_index` and `platform`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_symm.errors import SymmValueError

AxisName = str | Sequence[str]


class Place(NamedTuple):
    """Where a device stands: which group, and which rank of it."""

    group: int
    rank: int


def axis_tuple(axis_name: AxisName) -> tuple[str, ...]:
    """Normalises an axis name or a sequence of names to a tuple.

    Raises:
      SymmValueError: An axis is named twice.
    """
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if len(set(names)) != len(names):
        raise SymmValueError(f"axis_name: got {names}, expected each axis at most once")
    return names


def axis_text(axes: tuple[str, ...]) -> str:
    """The axes as a user writes them."""
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


@dataclasses.dataclass(frozen=True)
class MeshGroups:
    """Every group of a mesh along some axes.

    Attributes:
      axes: The axis names, in the order that numbers the ranks (the first varies
      slowest). devices: For each group, its devices in rank order. Groups are numbered
        row-major over the other axes of the mesh.
    """

    axes: tuple[str, ...]
    devices: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, mesh: Any, axis_name: AxisName) -> MeshGroups:
        """The groups of `mesh` along `axis_name`.

        Raises:
          SymmValueError: The mesh has no such axis, or an axis is named twice.
        """
        axes = axis_tuple(axis_name)
        names = tuple(mesh.axis_names)
        missing = [a for a in axes if a not in names]
        if missing:
            raise SymmValueError(
                f"axis_name: got {axis_text(axes)}, but the mesh has axes {names}"
            )
        others = [i for i, n in enumerate(names) if n not in axes]
        order = others + [names.index(a) for a in axes]
        grid = np.asarray(mesh.devices, dtype=object)
        world_size = int(np.prod([grid.shape[names.index(a)] for a in axes], dtype=int))
        rows = grid.transpose(order).reshape(-1, world_size)
        return cls(axes, tuple(tuple(row) for row in rows))

    @property
    def world_size(self) -> int:
        """Ranks per group."""
        return len(self.devices[0])

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that own a device of the mesh, ascending."""
        return tuple(sorted({d.process_index for row in self.devices for d in row}))

    @property
    def platform(self) -> str:
        """The platform of the devices, for example "cpu" or "gpu"."""
        return str(self.devices[0][0].platform)

    def device_ids(self) -> tuple[tuple[int, ...], ...]:
        """`device.id` of every device, shaped like `devices`."""
        return tuple(tuple(int(d.id) for d in row) for row in self.devices)

    def find(self, device: Any) -> Place:
        """The place of `device`.

        Raises:
          SymmValueError: The device is not in the mesh.
        """
        for group, row in enumerate(self.devices):
            for rank, member in enumerate(row):
                if member == device:
                    return Place(group, rank)
        raise SymmValueError(f"device: {device} is not in the mesh of this group")

    def local(self, process_index: int) -> tuple[tuple[Place, Any], ...]:
        """The places of the devices of process `process_index`, with the devices."""
        return tuple(
            (Place(group, rank), device)
            for group, row in enumerate(self.devices)
            for rank, device in enumerate(row)
            if device.process_index == process_index
        )

    def label(self, group: int, rank: int) -> str:
        """A rank as messages name it."""
        device = self.devices[group][rank]
        return (
            f"rank {rank} (process {device.process_index}, "
            f"{device.platform}:{device.id})"
        )

    def labels(self) -> list[list[str]]:
        """`label` of every rank, shaped like `devices`."""
        return [
            [self.label(group, rank) for rank in range(len(row))]
            for group, row in enumerate(self.devices)
        ]
