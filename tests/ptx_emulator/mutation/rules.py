"""Mutants of a PTX text: every occurrence of a rule's opcodes, changed one at a time.

A rule drops or weakens one instruction. None is picked by hand: whatever the PTX holds
of an opcode family is mutated, so the same rules serve any kernel. A mutant keeps the
number of lines: the PTX lines that the emulator names stay those of the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_STATEMENT = re.compile(
    r"(?P<guard>@!?[%\w$]+\s+)?(?<![\w.:%$])"
    r"(?P<opcode>[a-z][a-z0-9]*[.:][\w.:]*|membar)(?P<operands>[^;]*);"
)
_SCOPES = {"sys": "gpu", "gpu": "cta", "cluster": "cta"}
_ORDERED = ("acquire", "release", "acq_rel", "sc")


@dataclass(frozen=True)
class Statement:
    """One instruction and where it stands in the text."""

    guard: str
    opcode: str
    operands: tuple[str, ...]
    start: int
    end: int

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")

    def matches(self, *prefixes: str) -> bool:
        """Whether the opcode starts with one of these, whole modifiers only."""
        return any(re.match(rf"{re.escape(p)}(?![\w])", self.opcode) for p in prefixes)

    def render(self, opcode: str | None = None, **operands: str) -> str:
        """The statement with another opcode, or operands by position (`_0="..."`)."""
        values = list(self.operands)
        for name, value in operands.items():
            values[int(name[1:])] = value
        return f"{self.guard}{opcode or self.opcode} {', '.join(values)};"


@dataclass(frozen=True)
class Mutant:
    """One changed instruction.

    Attributes:
      family: one of `FAMILIES`.
      name: rule and occurrence, such as "drop mbarrier.try_wait #3".
      line: PTX line of the instruction, from 1.
      original: the instruction.
      replacement: what stands in its place.
      text: the whole mutated PTX.
    """

    family: str
    name: str
    line: int
    original: str
    replacement: str
    text: str


Edit = tuple[str, str, str]  # family, rule, replacement
Rule = Callable[[Statement], Iterator[Edit]]


def split_operands(text: str) -> tuple[str, ...]:
    """Splits at commas outside brackets and braces."""
    operands, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            operands.append(text[start:position].strip())
            start = position + 1
    operands.append(text[start:].strip())
    return tuple(operand for operand in operands if operand)


def statements(ptx: str) -> Iterator[Statement]:
    """Instructions with a dotted opcode, outside comments."""
    code = re.sub(r"//[^\n]*", lambda m: " " * len(m.group()), ptx)
    for match in _STATEMENT.finditer(code):
        yield Statement(
            match["guard"] or "",
            match["opcode"],
            split_operands(match["operands"]),
            match.start(),
            match.end(),
        )


def _base(statement: Statement) -> str:
    """The opcode without spaces, types and hints: a name for people."""
    hints = r"shared(::\w+)?|sync|aligned|[bu]\d+|cta_group::\d|mbarrier::\w+|one"
    kept = [p for p in statement.parts[2:] if not re.fullmatch(hints, p)]
    return ".".join(statement.parts[:2] + kept)


def _wait(s: Statement) -> Iterator[Edit]:
    if s.matches("mbarrier.try_wait", "mbarrier.test_wait"):
        yield "wait", f"drop {_base(s)}", f"{s.guard}setp.eq.u32 {s.operands[0]}, 0, 0;"
    if s.matches(
        "cp.async.bulk.wait_group",
        "wgmma.wait_group",
        "tcgen05.wait::ld",
        "tcgen05.wait::st",
        "barrier.cluster.wait",
        "bar.sync",
        "barrier.sync",
        "bar.warp.sync",
        "griddepcontrol.wait",
    ):
        yield "wait", f"drop {_base(s)}", ""
    if s.matches("cp.async.bulk.wait_group", "wgmma.wait_group"):
        more = s.render(_0=str(int(s.operands[0]) + 1))
        yield "wait", f"one more group in {_base(s)}", more
    if s.opcode == "cp.async.bulk.wait_group":
        yield "wait", f"only read in {_base(s)}", s.render(f"{s.opcode}.read")


def _arrive(s: Statement) -> Iterator[Edit]:
    name = f"drop {_base(s)}"
    if s.matches("mbarrier.arrive"):
        state = s.operands[0]
        kept = "" if state[0] in "_[" else f"{s.guard}mov.b64 {state}, 0;"
        yield "arrive", name, kept
    if s.matches("bar.arrive", "barrier.arrive", "barrier.cluster.arrive", "st.async"):
        yield "arrive", name, ""
    if s.matches("st", "red", "multimem.red", "multimem.st") and "release" in s.parts:
        yield "arrive", name, ""


def _commit(s: Statement) -> Iterator[Edit]:
    if s.matches("tcgen05.commit", "wgmma.commit_group", "cp.async.bulk.commit_group"):
        yield "commit", f"drop {_base(s)}", ""


def _fence(s: Statement) -> Iterator[Edit]:
    if s.matches(
        "fence",
        "membar",
        "wgmma.fence",
        "tcgen05.fence::before_thread_sync",
        "tcgen05.fence::after_thread_sync",
    ):
        yield "fence", f"drop {_base(s)}", ""


def _scope(s: Statement) -> Iterator[Edit]:
    if s.matches("fence.mbarrier_init", "fence.proxy"):
        return
    ordered = [part for part in s.parts if part in _ORDERED]
    if not ordered:
        return
    # The "cluster" of barrier.cluster is no scope.
    scopes = {} if s.matches("barrier.cluster") else _SCOPES
    for wide, narrow in scopes.items():
        if wide in s.parts:
            parts = [narrow if part == wide else part for part in s.parts]
            yield (
                "scope",
                f"{wide} to {narrow} in {_base(s)}",
                s.render(".".join(parts)),
            )
    # A fence and barrier.cluster.wait have no relaxed form.
    if ordered[0] != "sc" and not s.matches("fence", "barrier.cluster.wait"):
        parts = ["relaxed" if part == ordered[0] else part for part in s.parts]
        yield "scope", f"relax {_base(s)}", s.render(".".join(parts))


def _through_register(
    s: Statement, position: int, kind: str, operation: str, amount: str
) -> str:
    """The statement with one operand computed just before it."""
    value = s.operands[position]
    compute = f"{s.guard}{operation}.{kind} %mutant, {value}, {amount};"
    changed = s.render(**{f"_{position}": "%mutant"})
    return f"{{ .reg .{kind} %mutant; {compute} {changed} }}"


def _parity(s: Statement) -> Iterator[Edit]:
    if "parity" in s.parts:
        other = _through_register(s, 2, "b32", "xor", "1")
        yield "parity", f"other parity in {_base(s)}", other


def _tx(s: Statement) -> Iterator[Edit]:
    if "expect_tx" in s.parts:
        position = len(s.operands) - 1
        half = _through_register(s, position, "b32", "shr", "1")
        twice = _through_register(s, position, "b32", "shl", "1")
        yield "tx", f"half the bytes of {_base(s)}", half
        yield "tx", f"twice the bytes of {_base(s)}", twice


def _flip(s: Statement, position: int, bits: int, bit: int) -> str:
    return _through_register(s, position, f"b{bits}", "xor", str(1 << bit))


def _tcgen05_constant(s: Statement) -> Iterator[Edit]:
    if s.matches("tcgen05.mma"):
        fields = {"address": 1, "stride": 38, "version": 46, "swizzle": 62}
        for position, operand in ((1, "A"), (2, "B")):
            if s.operands[position].startswith("["):
                continue
            for field, bit in fields.items():
                changed = _flip(s, position, 64, bit)
                yield "constant", f"{field} of {operand} in tcgen05.mma", changed
        for field, bit in {
            "D type": 4, "A type": 7, "B type": 10, "A major": 15, "B major": 16,
            "N": 20, "M": 26,
        }.items():  # fmt: skip
            yield "constant", f"{field} in tcgen05.mma", _flip(s, 3, 32, bit)
    if s.matches("tcgen05.alloc"):
        half = _through_register(s, 1, "b32", "shr", "1")
        yield "constant", "half the columns of tcgen05.alloc", half


def _wgmma_constant(s: Statement) -> Iterator[Edit]:
    if not s.matches("wgmma.mma_async"):
        return
    fields = {"address": 1, "stride": 38, "swizzle": 62}
    for position, operand in ((1, "A"), (2, "B")):
        if s.operands[position].startswith("{"):
            continue
        for field, bit in fields.items():
            changed = _flip(s, position, 64, bit)
            yield "constant", f"{field} of {operand} in wgmma", changed
    majors = {"B major": len(s.operands) - 1}
    if not s.operands[1].startswith("{"):
        majors["A major"] = len(s.operands) - 2
    for field, position in majors.items():
        other = str(1 - int(s.operands[position]))
        changed = s.render(**{f"_{position}": other})
        yield "constant", f"{field} in wgmma", changed


RULES: tuple[Rule, ...] = (
    _wait,
    _arrive,
    _commit,
    _fence,
    _scope,
    _parity,
    _tx,
    _tcgen05_constant,
    _wgmma_constant,
)
FAMILIES = ("wait", "arrive", "commit", "fence", "scope", "parity", "tx", "constant")


def _kernel_span(ptx: str, kernel: str) -> tuple[int, int]:
    """Where the text of one kernel starts and ends."""
    entries = [(m[1], m.start()) for m in re.finditer(r"\.entry\s+([\w$]+)", ptx)]
    names = [name for name, _ in entries]
    if kernel not in names:
        raise ValueError(f"kernel: got {kernel!r}, expected one of {names}")
    starts = [start for _, start in entries] + [len(ptx)]
    position = names.index(kernel)
    return starts[position], starts[position + 1]


def mutants(ptx: str, kernel: str | None = None) -> list[Mutant]:
    """Every mutant of the text, or of one kernel in it, in the order of instructions."""
    first, last = _kernel_span(ptx, kernel) if kernel else (0, len(ptx))
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for statement in statements(ptx):
        if not first <= statement.start < last:
            continue
        original = ptx[statement.start : statement.end]
        line = ptx.count("\n", 0, statement.start) + 1
        for rule in RULES:
            for family, name, replacement in rule(statement):
                seen[name] = seen.get(name, -1) + 1
                padded = replacement + "\n" * original.count("\n")
                text = ptx[: statement.start] + padded + ptx[statement.end :]
                numbered = f"{name} #{seen[name]}"
                found.append(
                    Mutant(family, numbered, line, original, replacement, text)
                )
    return found
