"""A kernel translated to executable blocks: runs of inline instructions and single steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import instructions  # noqa: F401  fills the table of forms
from .codegen import Emitter, find_form
from .errors import EmulationError
from .instructions.control import EXIT
from .memory import PARAM_WINDOW
from .ptx import Function, Instruction, Module
from .shared_layout import SharedLayout


class Run:
    """Inline instructions as Python source, compiled when first executed."""

    def __init__(self, name: str, source: str, environment: dict):
        self._name, self._source, self._environment = name, source, environment
        self._function: Callable | None = None

    def __call__(self, *arguments) -> None:
        if self._function is None:
            code = compile(self._source, f"<{self._name}>", "exec")
            exec(code, self._environment)
            self._function = self._environment["run"]
        self._function(*arguments)


@dataclass
class Block:
    """One scheduling unit. A run has `whole` and `masked`; a step has `body`."""

    pc: int
    next_pc: int
    count: int
    whole: Run | None = None
    masked: Run | None = None
    body: Callable | None = None
    guard: int | None = None
    guard_negated: bool = False


class Program:
    """The translated entry function and its memory layout."""

    def __init__(self, module: Module, function: Function):
        self.module = module
        self.function = function.load()
        shared = [v for v in module.variables.values() if v.space == "shared"]
        layout = SharedLayout.of([*shared, *function.shared_variables.values()])
        self.static_end, self.dynamic_start = layout.static_end, layout.dynamic_start
        offsets = layout.offsets
        symbols = {name: ("shared", at) for name, at in offsets.items()}
        for v in module.variables.values():
            if v.space in ("global", "const"):
                symbols[v.name] = ("global", 0)
        for p in function.parameters.values():
            symbols[p.name] = ("param", PARAM_WINDOW + p.offset)
        self.local_bytes = 0
        for v in function.local_variables.values():
            at = (self.local_bytes + v.align - 1) // v.align * v.align
            symbols[v.name] = ("local", at)
            self.local_bytes = at + v.size_bytes
        self.local_bytes = (self.local_bytes + 31) // 32 * 32
        self.blocks: list[Block | None] = [None] * (len(function.instructions) + 1)
        self._translate(Emitter(function, symbols))

    def line(self, pc: int) -> int:
        return self.function.instructions[pc].line

    def text(self, pc: int) -> str:
        code = self.function.instructions
        return code[pc].text if pc < len(code) else "end of the kernel"

    # Translation --------------------------------------------------------------------

    def _translate(self, e: Emitter) -> None:
        code = self.function.instructions
        targets = {
            i.scope.label(i.operands[0])
            for i in code
            if i.mnemonic == "bra" and i.operands
        }
        asynchronous = self._asynchronous_registers()
        errors: list[EmulationError] = []
        run: list[tuple[Instruction, list]] = []
        for i in code:
            if i.pc in targets and run:
                self._close(e, run)
                run = []
            e.begin(i)
            try:
                handler, m, is_step = find_form(i)
                result = handler(e, i, m)
            except EmulationError as error:
                errors.append(error)
                continue
            if is_step:
                if run:
                    self._close(e, run)
                    run = []
                self._step(e, i, result, asynchronous)
            else:
                run.append((i, self._inline_lines(e, i, asynchronous)))
        if errors:
            lines = "\n  ".join(str(x) for x in errors[:40])
            raise EmulationError(
                "unsupported",
                f"{len(errors)} instructions of {self.function.name}:\n  {lines}",
                errors[0].line,
            )
        if run:
            self._close(e, run)
        end = len(code)
        self.blocks[end] = Block(end, end, 1, body=lambda w, lanes: EXIT)

    def _asynchronous_registers(self) -> set[int]:
        """Registers that an asynchronous operation may still be writing, through moves as well."""
        found: set[int] = set()
        moves = []
        for i in self.function.instructions:
            if i.opcode.startswith(("wgmma.mma_async", "tcgen05.ld")):
                found.update(
                    i.scope.register(x.strip())
                    for x in i.operands[0].strip("{}").split(",")
                )
            elif i.mnemonic == "mov" and "{" not in i.text and len(i.operands) == 2:
                target, source = (i.scope.register(x) for x in i.operands)
                if target is not None and source is not None:
                    moves.append((target, source))
        size = -1
        while found and size != len(found):
            size = len(found)
            found.update(t for t, s in moves if s in found)
        return found

    def _inline_lines(
        self, e: Emitter, i: Instruction, asynchronous: set[int]
    ) -> list[tuple[int | None, str]]:
        touched = sorted({r for r in (*e.reads, *e.writes) if r in asynchronous})
        if not touched:
            return e.lines
        if (
            i.mnemonic == "mov"
            and len(e.lines) == 1
            and len(e.reads) == 1
            and e.reads[0] in asynchronous
            and i.guard is None
        ):
            (target, code), source = e.lines[0], e.reads[0]
            return [
                (
                    None,
                    f"if w.in_flight: w.rename({target}, {source}, ACT)",
                ),
                (target, code),
            ]
        lines = [
            (
                None,
                f"if w.in_flight: w.check_in_flight({tuple(touched)})",
            ),
            *e.lines,
        ]
        written = tuple(r for r in e.writes if r in asynchronous)
        if written and i.mnemonic != "mov":
            lines.append((None, f"w.unfenced.update({written})"))
        return lines

    def _step(
        self, e: Emitter, i: Instruction, body: Callable, asynchronous: set[int]
    ) -> None:
        if not i.opcode.startswith(("wgmma.", "tcgen05.ld")):
            touched = tuple(r for r in {*e.reads, *e.writes} if r in asynchronous)
            if touched:
                inner = body

                def body(w, lanes):
                    if w.in_flight:
                        w.check_in_flight(touched)
                    return inner(w, lanes)

        guard = None
        if i.guard is not None:
            guard = i.scope.register(i.guard)
            if guard is None:
                raise i.unsupported(f"guard {i.guard}")
        self.blocks[i.pc] = Block(
            i.pc, i.pc + 1, 1, body=body, guard=guard, guard_negated=i.guard_negated
        )

    def _close(self, e: Emitter, run: list[tuple[Instruction, list]]) -> None:
        """Makes a block of a run: one form for a full warp, one for a mask of lanes."""
        whole, masked = ["def run(w):", " R = w.R"], ["def run(w, A):", " R = w.R"]
        for i, lines in run:
            if i.guard is None:
                whole += [f" {_statement(r, code, 'None')}" for r, code in lines]
                masked += [f" {self._masked(r, code, 'A')}" for r, code in lines]
                continue
            guard = i.scope.register(i.guard)
            if guard is None:
                raise i.unsupported(f"guard {i.guard}")
            taken = f"~R[{guard}]" if i.guard_negated else f"R[{guard}]"
            guarded = [f"  {self._masked(r, code, 'G')}" for r, code in lines]
            whole += [f" G = {taken}", " if any_lane(G):", *guarded]
            masked += [f" G = {taken} & A", " if any_lane(G):", *guarded]
        first, last = run[0][0], run[-1][0]
        name = f"{self.function.name} line {first.line}"
        forms = [Run(name, "\n".join(x), e.environment) for x in (whole, masked)]
        self.blocks[first.pc] = Block(first.pc, last.pc + 1, len(run), *forms)

    def _masked(self, register: int | None, code: str, mask: str) -> str:
        if register is None:
            return code.replace("ACT", mask)
        broadcast = (
            f"{mask}[:, None]" if self.function.register_bytes[register] == 16 else mask
        )
        return f"R[{register}] = where({broadcast}, {code.replace('ACT', mask)}, R[{register}])"


def _statement(register: int | None, code: str, mask: str) -> str:
    code = code.replace("ACT", mask)
    return code if register is None else f"R[{register}] = {code}"
