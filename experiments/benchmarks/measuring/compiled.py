"""What a compiled program does, read from its text: operations, memory traffic, collectives."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

_BITS = {'pred': 8, 'bf16': 16, 'f16': 16, 'f32': 32, 'f64': 64}
_ARRAY = re.compile(
    r'([a-z]+[0-9]*(?:e[0-9a-z]+)?)\[([0-9,]*)\](?:\{([0-9,]*)(?::T\(([0-9,]*)\))?)?'
)
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.-]+) = (.+?) ([\w-]+)\((.*)$')
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.-]+) (?:\(.*)?\{$')
_CALLED = re.compile(r'(?:calls|to_apply|body|condition|branch_computations)=\{?%?([\w.-]+)')
_CONTROL = ('while', 'conditional', 'call')
_INDEXING = ('gather', 'dynamic-slice')
_COLLECTIVE = re.compile(r'^(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)')
# They move no data, or their parts are counted.
_FREE = {
    *_CONTROL, 'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'iota',
    'after-all', 'opt-barrier',
}  # fmt: skip


class Instruction(NamedTuple):
    """An instruction of a compiled program that reads or writes memory."""

    name: str
    operation: str  # such as fusion or convolution
    source: str  # the operation of JAX that it computes, '' if unknown
    bytes: int  # of its operands and its results


def size(shape: str) -> int:
    """Bytes of the arrays in the text of a type, as a TPU pads them to tiles."""
    total = 0
    for kind, *numbers in _ARRAY.findall(shape):
        digits = re.findall(r'\d+', kind)
        bits = _BITS.get(kind) or (int(digits[0]) if digits else 0)
        sides, order, tile = ([int(n) for n in text.split(',') if n] for text in numbers)
        for axis, least in zip(order, reversed(tile), strict=False):  # the last axis first
            sides[axis] = -(-sides[axis] // least) * least
        total += math.prod(sides) * bits
    return total // 8


def instructions(text: str) -> list[Instruction]:
    """The instructions of a program that move data, each counted once, also those of loops.

    Args:
      text: of `jax.stages.Compiled.as_text`.

    Returns:
      The instructions outside of fusions. Of an operand that is only indexed, the rows that are
      read count.
    """
    parsed = _parse(text)
    sizes = {line.name: line.size for lines in parsed.values() for line in lines}
    fused = {
        name
        for lines in parsed.values()
        for line in lines
        if line.operation not in _CONTROL
        for name in line.called
    }

    def bytes_of(line: _Line) -> int:
        operands = [sizes.get(name, 0) for name in line.operands]
        if line.operation in _INDEXING:
            operands[:1] = [line.size]
        elif line.operation == 'fusion':
            body = parsed[line.called[0]]
            operands = [min(n, _read(body, i, n)) for i, n in enumerate(operands)]
        return line.size + sum(operands)

    return [
        Instruction(line.name, line.operation, line.source, bytes_of(line))
        for computation, lines in parsed.items()
        if computation not in fused
        for line in lines
        if line.operation not in _FREE and not line.operation.endswith('-done')
    ]


def label(name: str, source: str) -> str:
    """An instruction in words: its name, and the operation of JAX if it is known."""
    return f'{name} ({source.rpartition("/")[2]})' if source else name


def contents(text: str) -> Iterator[tuple[str, str, set[str]]]:
    """Each instruction of a program: name, operation, and the operations that it consists of."""
    parsed = _parse(text)
    for lines in parsed.values():
        for line in lines:
            body = parsed.get(line.called[0], []) if line.operation == 'fusion' else [line]
            yield line.name, line.operation, {inner.operation for inner in body}


class _Line(NamedTuple):
    """An instruction as it is written."""

    name: str
    operation: str
    size: int  # bytes of its results
    operands: list[str]
    called: list[str]  # computations
    source: str
    rest: str  # after the parenthesis


def _parse(text: str) -> dict[str, list[_Line]]:
    """The instructions of each computation."""
    parsed: dict[str, list[_Line]] = {}
    lines: list[_Line] = []
    for text_line in text.splitlines():
        if header := _COMPUTATION.match(text_line):
            lines = parsed.setdefault(header[1], [])
        elif match := _INSTRUCTION.match(text_line):
            name, shape, operation, rest = match.groups()
            source = re.search(r'op_name="([^"]*)"', rest)
            operands = re.findall(r'%([\w.-]+)', rest.partition(')')[0])
            called = _CALLED.findall(rest)
            source_text = source[1] if source else ''
            lines.append(_Line(name, operation, size(shape), operands, called, source_text, rest))
    return parsed


def _read(body: list[_Line], number: int, whole: int) -> int:
    """Bytes that a fusion reads of its operand with this number, of `whole` bytes."""
    names = {
        line.name for line in body
        if line.operation == 'parameter' and line.rest.startswith(f'{number})')
    }  # fmt: skip
    total = 0
    for line in body:
        if names.isdisjoint(line.operands):
            continue
        if line.operation == 'bitcast':
            names.add(line.name)
        elif line.operation in _INDEXING and line.operands[0] in names:
            total += line.size
        else:
            return whole
    return total


def describe(program: Any) -> dict[str, Any]:
    """The measures of a compiled program on each device; loops are counted as one turn.

    Args:
      program: a `jax.stages.Compiled`.

    Returns:
      Bytes of memory, bytes read and written and operations as XLA counts them (without it, the
      bytes of `instructions`), collectives by name, and the five instructions that move most bytes.
    """
    memory, text = program.memory_analysis(), program.as_text()
    moved = instructions(text)
    counted = program.cost_analysis() or {}
    largest = sorted(moved, key=lambda instruction: -instruction.bytes)[:5]
    collectives = Counter(
        match[1] for i in moved if (match := _COLLECTIVE.match(i.operation)) is not None
    )
    return {
        'memory': {
            'arguments': memory.argument_size_in_bytes,
            'results': memory.output_size_in_bytes,
            'temporary': memory.temp_size_in_bytes,
        },
        'bytes': counted.get('bytes accessed') or sum(i.bytes for i in moved),
        'flop': counted.get('flops'),
        'instructions': len(moved),
        'collectives': dict(collectives),
        'largest': [instruction._asdict() for instruction in largest],
    }
