"""PTX text to functions, registers, labels, variables and instructions with their line numbers."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import EmulationError

TYPE_BYTES = {
    "pred": 0, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
    "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip


@dataclass
class Scope:
    """One { } block: its registers (name -> index) and labels (name -> instruction index)."""

    parent: Scope | None
    registers: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)

    def register(self, name: str) -> int | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.registers:
                return scope.registers[name]
            scope = scope.parent
        return None

    def label(self, name: str) -> int | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None


@dataclass
class Instruction:
    opcode: str
    operands: list[str]
    guard: str | None
    guard_negated: bool
    scope: Scope
    line: int
    text: str
    pc: int

    @property
    def mnemonic(self) -> str:
        return self.opcode.split(".", 1)[0]

    def unsupported(
        self, what: str = "no such form in the emulator's tables"
    ) -> EmulationError:
        return EmulationError(
            "unsupported", f"line {self.line}: {what}: {self.text}", self.line
        )


@dataclass
class Variable:
    """A .global, .const, .shared or .local variable."""

    name: str
    space: str
    align: int
    size_bytes: int
    initial: bytes
    dynamic: bool


@dataclass
class Parameter:
    name: str
    offset: int
    size_bytes: int


@dataclass
class Function:
    name: str
    is_entry: bool
    parameters: dict[str, Parameter]
    parameter_bytes: int
    required_block: tuple[int, ...] | None
    max_threads: int | None
    min_blocks: int
    max_registers: int | None
    required_cluster: tuple[int, ...] | None
    parse_body: Callable[[Function], None]
    instructions: list[Instruction] = field(default_factory=list)
    register_bytes: list[int] = field(default_factory=list)
    local_variables: dict[str, Variable] = field(default_factory=dict)
    shared_variables: dict[str, Variable] = field(default_factory=dict)

    def load(self) -> Function:
        """Parses the body, the first time; a module may hold many kernels of which few are run."""
        if not self.instructions:
            self.parse_body(self)
        return self


@dataclass
class Module:
    target: str
    functions: dict[str, Function]
    variables: dict[str, Variable]


def split_operands(text: str) -> list[str]:
    """Splits at the commas outside every bracket."""
    parts, depth, current = [], 0, []
    for char in text:
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        if char == "," and depth == 0:
            parts.append("".join(current).strip())
            current = []
        else:
            current.append(char)
    last = "".join(current).strip()
    return [*parts, last] if last else parts


_LINE_COMMENT = re.compile(r"//[^\n]*")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)")
_DIRECTIVES = (
    ".pragma",
    ".loc ",
    ".file",
    ".branchtargets",
    ".callprototype",
    ".calltargets",
    ".noreturn",
)


class _Parser:
    def __init__(self, text: str):
        text = _LINE_COMMENT.sub("", text)
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
        self.newlines = [m.start() for m in re.finditer("\n", self.text)]

    def line(self, position: int) -> int:
        return bisect.bisect_left(self.newlines, position) + 1

    def fail(self, position: int, what: str) -> EmulationError:
        line = self.line(position)
        return EmulationError("parse", f"line {line}: {what}", line)

    def closing_brace(self, start: int) -> int:
        depth = 0
        for m in re.compile(r'[{}]|"[^"\n]*"').finditer(self.text, start):
            if m[0] == "{":
                depth += 1
            elif m[0] == "}":
                depth -= 1
                if depth == 0:
                    return m.start()
        raise self.fail(start, "unbalanced {")

    def module(self) -> Module:
        target = re.search(r"\.target\s+(\w+)", self.text)
        if not target:
            raise EmulationError("parse", "no .target directive")
        functions: dict[str, Function] = {}
        variables: dict[str, Variable] = {}
        head = re.compile(
            r"\s*(\.(?:version|target|address_size)[^\n]*|\.(?:file|section)\b[^\n{]*)?"
        )
        position, end = 0, len(self.text)
        while position < end:
            m = head.match(self.text, position)
            position = m.end()
            if m[1]:
                if m[1].startswith(".section"):
                    position = self.closing_brace(position) + 1
                continue
            if position >= end:
                break
            stop = position
            while stop < end and self.text[stop] not in ";{":
                stop += 1
            if stop >= end:
                raise self.fail(
                    position,
                    f"unexpected end of file: {self.text[position : position + 40]!r}",
                )
            words = self.text[position:stop]
            if self.text[stop] == "{" and re.search(r"\.(entry|func)\b", words):
                close = self.closing_brace(stop)
                function = self.function_head(words, position)
                function.parse_body = functools.partial(
                    self.body, position=stop + 1, end=close
                )
                functions[function.name] = function
                position = close + 1
            else:
                stop = self.text.index(
                    ";", self.closing_brace(stop) if self.text[stop] == "{" else stop
                )
                statement = self.text[position:stop]
                if statement.strip() and not re.search(r"\.(func|alias)\b", statement):
                    variable = self.variable(statement, position)
                    variables[variable.name] = variable
                position = stop + 1
        return Module(target[1], functions, variables)

    def variable(self, statement: str, position: int) -> Variable:
        head, _, init = statement.partition("=")
        m = re.search(
            r"\.(global|shared|const|local)\b.*?\.([busf]\d+)\s+([\w$]+)\s*((?:\[\d*\])*)\s*$",
            head,
            re.S,
        )
        if not m:
            raise self.fail(
                position,
                f"variable declaration not understood: {' '.join(statement.split())}",
            )
        space, kind, name, dims = m.groups()
        count = 1
        for d in re.findall(r"\[(\d*)\]", dims):
            count *= int(d or 0)
        align = re.search(r"\.align\s+(\d+)", head)
        size = TYPE_BYTES[kind]
        values = re.findall(r"-?\b(?:0x[0-9a-fA-F]+|\d+)U?\b", init)
        if re.search(r"[A-Za-z_$]{2}", re.sub(r"0x[0-9a-fA-F]+", "", init)):
            raise self.fail(
                position, f"initialiser with symbols is not supported: {name}"
            )
        data = b"".join(
            (int(v.rstrip("U"), 0) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            for v in values
        )
        return Variable(
            name,
            space,
            int(align[1]) if align else size,
            size * count,
            data,
            ".extern" in head,
        )

    def function_head(self, head: str, position: int) -> Function:
        m = re.search(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)", head)
        if not m:
            raise self.fail(position, "function head not understood")
        listed = re.match(r"\s*\((.*?)\)", head[m.end() :], re.S)
        parameters, offset = {}, 0
        pattern = re.compile(
            r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr(?:\s+\.\w+)*(?:\s+\.align\s+\d+)?\s+)?([\w$]+)"
            r"(?:\[(\d+)\])?$",
            re.S,
        )
        for text in split_operands(listed[1]) if listed else []:
            q = pattern.match(text)
            if not q:
                raise self.fail(
                    position, f"parameter not understood: {' '.join(text.split())}"
                )
            align, kind, name, count = q.groups()
            size = TYPE_BYTES[kind] * int(count or 1)
            step = int(align or TYPE_BYTES[kind])
            offset = (offset + step - 1) // step * step
            parameters[name] = Parameter(name, offset, size)
            offset += size

        def numbers(directive: str) -> tuple[int, ...] | None:
            found = re.search(rf"\.{directive}\s+([\d, \t]+)", head)
            return (
                tuple(
                    int(x) for x in found[1].replace(" ", "").strip(", \t").split(",")
                )
                if found
                else None
            )

        limit = numbers("reqntid") or numbers("maxntid")
        threads = None
        if limit:
            threads = 1
            for d in limit:
                threads *= d
        return Function(
            name=m[2],
            is_entry=m[1] == "entry",
            parameters=parameters,
            parameter_bytes=offset,
            required_block=numbers("reqntid"),
            max_threads=threads,
            min_blocks=(numbers("minnctapersm") or (1,))[0],
            max_registers=(numbers("maxnreg") or (None,))[0],
            required_cluster=numbers("reqnctapercluster"),
            parse_body=lambda function: None,
        )

    def body(self, function: Function, position: int, end: int) -> None:
        scope = Scope(None)
        text = self.text
        space = re.compile(r"[\s;]*")
        while True:
            position = space.match(text, position, end).end()
            if position >= end:
                return
            if text[position] == "{":
                scope = Scope(scope)
                position += 1
                continue
            if text[position] == "}":
                scope = scope.parent
                position += 1
                continue
            label = _LABEL.match(text, position, end)
            if label:
                scope.labels[label[1]] = len(function.instructions)
                position = label.end()
                continue
            stop = text.index(";", position)
            statement = " ".join(text[position:stop].split())
            if statement.startswith((".loc ", ".file ")):
                position = text.index("\n", position)
                continue
            if statement.startswith(".reg"):
                self.registers(function, scope, statement)
            elif statement.startswith("."):
                self.declaration(function, statement, position)
            else:
                function.instructions.append(
                    self.instruction(
                        statement,
                        scope,
                        self.line(position),
                        len(function.instructions),
                    )
                )
            position = stop + 1

    def declaration(self, function: Function, statement: str, position: int) -> None:
        if statement.startswith(_DIRECTIVES) or statement.startswith(".param"):
            return
        variable = self.variable(statement, position)
        if variable.space == "local":
            function.local_variables[variable.name] = variable
        elif variable.space == "shared":
            function.shared_variables[variable.name] = variable
        else:
            raise self.fail(position, f"declaration inside a function: {statement}")

    @staticmethod
    def registers(function: Function, scope: Scope, statement: str) -> None:
        kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", statement).groups()
        for name in names.split(","):
            many = re.match(r"([%\w$]+)<(\d+)>", name.strip())
            each = (
                [f"{many[1]}{k}" for k in range(int(many[2]))]
                if many
                else [name.strip()]
            )
            for register in each:
                scope.registers[register] = len(function.register_bytes)
                function.register_bytes.append(TYPE_BYTES[kind])

    def instruction(
        self, statement: str, scope: Scope, line: int, pc: int
    ) -> Instruction:
        m = re.match(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", statement)
        if not m:
            raise EmulationError(
                "parse", f"line {line}: instruction not understood: {statement}", line
            )
        negated, guard, opcode, rest = m.groups()
        return Instruction(
            opcode,
            split_operands(rest),
            guard,
            negated == "!",
            scope,
            line,
            statement,
            pc,
        )


@functools.lru_cache(maxsize=8)  # a kernel of ours takes several megabytes
def parse(text: str) -> Module:
    """Parses one PTX module; the result is shared between machines and must not be changed."""
    return _Parser(text).module()
