"""Builds small PTX modules for the tests: a body, its parameters, and registers to spare."""

from __future__ import annotations

HEAD = """.version 9.0
.target {target}
.address_size 64
{globals}
.visible .entry k({parameters})
.maxntid {threads}
{{
.reg .pred %p<32>;
.reg .b16 %h<32>;
.reg .b32 %r<160>;
.reg .f32 %f<160>;
.reg .b64 %rd<64>;
.reg .f64 %fd<8>;
.reg .b128 %q<4>;
.reg .b32 %tid;
.reg .b32 %warp;
.reg .b32 %lane;
{shared}
mov.u32 %tid, %tid.x;
shr.u32 %warp, %tid, 5;
mov.u32 %lane, %laneid;
{loads}
{body}
ret;
}}
"""


def module(
    body: str,
    parameters: str = "",
    *,
    shared: str = "",
    globals_: str = "",
    target: str = "sm_90a",
    threads: int = 1024,
) -> str:
    """PTX whose entry `k` runs `body`.

    `parameters` lists u64 (name) or u32 (name:u32) parameters; each is loaded into a
    register `%name`. `shared` declares variables. `%tid`, `%warp`, `%lane` are set.
    """
    declared, loads = [], []
    for word in parameters.split():
        name, _, kind = word.partition(":")
        kind = kind or "u64"
        declared.append(f".param .{kind} {name}")
        loads.append(f".reg .b{kind[1:]} %{name};")
        loads.append(f"ld.param.{kind} %{name}, [{name}];")
    return HEAD.format(
        target=target,
        globals=globals_,
        parameters=", ".join(declared),
        threads=threads,
        shared=shared,
        loads="\n".join(loads),
        body=body,
    )


def once(number: int, code: str, *, of: str = "%tid", predicate: str = "%p31") -> str:
    """Runs `code` only where `of` equals `number`; labels in it are local."""
    return (
        f"{{\nsetp.ne.u32 {predicate}, {of}, {number};\n@{predicate} bra SKIP;\n"
        f"{code}\nSKIP:\n}}\n"
    )


def spin(load: str, register: str, wanted: str) -> str:
    """Repeats `load` until `register` equals `wanted`."""
    return (
        f"{{\nAGAIN:\n{load}\nsetp.ne.u32 %p30, {register}, {wanted};\n"
        "@%p30 bra AGAIN;\n}\n"
    )


def wait(barrier: str, parity: str) -> str:
    """Waits for the phase of an mbarrier."""
    return (
        "{\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p29, "
        f"[{barrier}], {parity};\n@!%p29 bra AGAIN;\n}}\n"
    )
