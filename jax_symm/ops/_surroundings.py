"""What an operation asks of the `jax.shard_map` around it and of its operands."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
from jax import lax

from jax_symm.errors import SymmAxisError, SymmValueError
from jax_symm.group import AxisName, axis_text, axis_tuple
from jax_symm.ops import reference


def operands(
    name: str, axis_name: AxisName, x: jax.Array, w: jax.Array
) -> tuple[tuple[str, ...], jax.Array, jax.Array]:
    """Checks that the axes are manual here and makes x and w vary alike."""
    axes = axis_tuple(axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    unbound = tuple(a for a in axes if a not in mesh.manual_axes)
    if unbound:
        raise SymmAxisError(
            f"{name}: axis {axis_text(unbound)} is not bound to a mesh axis here "
            f"(bound: {tuple(mesh.manual_axes)}). Call it inside jax.shard_map over a "
            f"mesh that has this axis; the axis_name of a jax.vmap will not do."
        )
    shadowed = tuple(a for a in axes if lax.axis_size(a) != mesh.shape[a])
    if shadowed:
        raise shadowed_axis(name, shadowed)
    x, w = jax.numpy.asarray(x), jax.numpy.asarray(w)
    for operand_name, operand in (("x", x), ("w", w)):
        _refuse_explicit_axes(name, operand_name, operand, mesh)
    varying = (
        set(axes)
        | jax.typeof(x).manual_axis_type.varying
        | jax.typeof(w).manual_axis_type.varying
    )
    return axes, reference.vary(x, varying), reference.vary(w, varying)


def shadowed_axis(name: str, axes: tuple[str, ...]) -> SymmAxisError:
    """What to raise where a vmap inside the shard_map has taken the name of an axis."""
    return SymmAxisError(
        f"{name}: axis {axis_text(axes)} is the axis_name of a jax.vmap here; the "
        "ranks are devices, so it must be a mesh axis of jax.shard_map: give the vmap "
        "another axis_name"
    )


def _refuse_explicit_axes(
    name: str, operand_name: str, x: jax.Array, mesh: Any
) -> None:
    if not mesh.explicit_axes:
        return
    used: list[str] = []
    for entry in jax.typeof(x).sharding.spec:
        names = entry if isinstance(entry, tuple) else (entry,)
        used += [a for a in names if a in mesh.explicit_axes]
    if used:
        raise SymmValueError(
            f"{name}: {operand_name} is sharded over the explicit mesh axis "
            f"{axis_text(tuple(used))}, which is not manual here; add it to axis_names "
            "of the enclosing jax.shard_map"
        )


def warn_about_auto_axes(call: str, stacklevel: int) -> None:
    """Warns, once for each call and axes; `stacklevel` as from the caller of this."""
    mesh = jax.sharding.get_abstract_mesh()
    left = tuple((a, mesh.shape[a]) for a in mesh.auto_axes if mesh.shape[a] > 1)
    if left:
        _warn_once(call, left, stacklevel + 2)


@functools.cache
def _warn_once(call: str, left: tuple[tuple[str, int], ...], stacklevel: int) -> None:
    names = ", ".join(name for name, _ in left)
    copies = functools.reduce(lambda size, axis: size * axis[1], left, 1)
    warnings.warn(
        f"{call}: the enclosing jax.shard_map leaves the mesh axes {names} to the "
        f"compiler, which gathers x and w over them, and all {copies} devices along "
        "them do the same work; add them to axis_names to avoid it",
        stacklevel=stacklevel,
    )
