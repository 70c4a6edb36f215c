"""Small changes to Python source that a test ought to notice: one changed operator, constant, condition or statement.

`mutants_of` lists every change of one file. Left out is what no test of behaviour can see: annotations, docstrings,
imports, decorators, assertions, text in f-strings, and what an error says (that it is raised can be dropped).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}
OPPOSITES = {"min": "max", "amin": "amax", "minimum": "maximum", "add_": "sub_", "mul_": "div_"}
OPPOSITES |= {after: before for before, after in OPPOSITES.items()}
SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
SYMBOLS |= {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}
FLOAT_FACTOR = 1.5
COMMUTATIVE = ("min", "max", "minimum", "maximum", "zip")
# What an error says, and whether two lists of ours must have one length.
KEYWORDS_LEFT_OUT = ("given", "needed", "fix", "code", "strict")


@dataclass(frozen=True)
class Mutant:
    """One change; `function` and `statement` say where, so that it is known again when lines move."""

    module: str
    kind: str
    function: str
    statement: str
    before: str
    after: str
    line: int
    source: str  # of the whole file, changed

    @property
    def content(self) -> tuple[str, str, str, str, str]:
        return self.module, self.function, self.statement, self.before, self.after


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every change of a file, in the order of its text."""
    found: list[Mutant] = []
    for function, statement, node in _visited(ast.parse(source)):
        for kind, part, after in _changes(node):
            where = (function, statement, ast.unparse(part))
            found.append(Mutant(module, kind, *where, after, part.lineno, _replaced(source, part, after)))
    return found


def _visited(tree: ast.Module) -> Iterator[tuple[str, str, ast.AST]]:
    """(function, statement, node) for each node that may change: statements, and expressions within them."""

    def visit(node: ast.AST, function: str, statement: str) -> Iterator[tuple[str, str, ast.AST]]:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr | ast.arg) or _is_text(node):
            return
        if isinstance(node, ast.stmt):
            # its first line as it is written normally, without the block below it
            statement = ast.unparse(node).partition(":\n")[0]
            yield function, statement, node
        elif isinstance(node, ast.expr | ast.comprehension):
            yield function, statement, node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        for child in _children(node) if not _is_negative_number(node) else ():
            yield from visit(child, function, statement)

    return visit(tree, "", "")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "cause", "targets", "target", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            named = isinstance(child, ast.keyword) and child.arg in KEYWORDS_LEFT_OUT
            if isinstance(child, ast.AST) and not named:
                yield child


def _is_negative_number(node: ast.AST) -> bool:
    """-1 and the like, one constant to a reader."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _is_text(node: ast.AST) -> bool:
    """A docstring, or the list of public names."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """(kind, what is replaced, new text) for each change of this node; those of its parts are found at the parts."""
    conditions = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
    conditions += node.ifs if isinstance(node, ast.comprehension) else []
    for condition in conditions:
        yield "negated condition", condition, f"(not ({ast.unparse(condition)}))"
    if isinstance(node, ast.expr):
        for kind, after in _other_expressions(node):
            yield kind, node, after
    elif isinstance(node, ast.stmt):
        for kind, after in _other_statements(node):
            yield kind, node, after


def _other_expressions(node: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for symbol in COMPARISONS[type(operator)]:
                yield "comparison", _compared(node, place, symbol)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield "arithmetic", _between(node.left, ARITHMETIC[type(node.op)][1], node.right)
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield "and/or", word.join(f"({ast.unparse(value)})" for value in node.values)
    elif isinstance(node, ast.UnaryOp) and _is_negative_number(node):
        number = ast.literal_eval(node)
        yield "off by one", f"({number + 1})"
        yield "off by one", f"({number - 1})"
    elif isinstance(node, ast.UnaryOp):
        yield "sign dropped", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)


def _other_constants(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield "flag", repr(not value)
    elif isinstance(value, int):
        yield "off by one", f"({value + 1})"
        yield "off by one", f"({value - 1})"
    elif isinstance(value, float):
        yield "float", repr(value * FLOAT_FACTOR) if value else "1.0"


def _other_calls(node: ast.Call) -> Iterator[tuple[str, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in OPPOSITES:
        start = ast.unparse(node.func).removesuffix(name)
        arguments = ", ".join(ast.unparse(part) for part in (*node.args, *node.keywords))
        yield "opposite call", f"{start}{OPPOSITES[name]}({arguments})"
    for place, keyword in enumerate(node.keywords):
        if keyword.arg in ("min", "max"):
            other = ast.keyword(OPPOSITES[keyword.arg], keyword.value)
            keywords = [*node.keywords[:place], other, *node.keywords[place + 1 :]]
            yield "opposite call", ast.unparse(ast.Call(node.func, node.args, keywords))
    for place in range(len(node.args) - 1 if name not in COMMUTATIVE else 0):
        first, second = node.args[place : place + 2]
        if type(first) is type(second) and not isinstance(first, ast.Starred | ast.Constant):
            swapped = [*node.args[:place], second, first, *node.args[place + 2 :]]
            yield "swapped arguments", ast.unparse(ast.Call(node.func, swapped, node.keywords))


def _other_statements(node: ast.stmt) -> Iterator[tuple[str, str]]:
    fills = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if fills or isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Break | ast.Continue):
        yield "dropped statement", "pass"
    elif isinstance(node, ast.Return) and node.value is not None:
        text = ast.unparse(node.value)
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            elements = [ast.unparse(element) for element in node.value.elts]
            yield "return value", f"return ({', '.join([elements[1], elements[0], *elements[2:]])})"
        elif isinstance(node.value, ast.Compare | ast.BoolOp) or text.startswith(("not ", "bool(")):
            yield "return value", f"return not ({text})"
        elif isinstance(node.value, ast.BinOp):
            yield "return value", f"return -({text})"
        elif text != "None":
            yield "return value", "return None"


def _compared(node: ast.Compare, place: int, symbol: str) -> str:
    text = _wrapped(node.left)
    for number, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
        text += f" {symbol if number == place else SYMBOLS[type(operator)]} {_wrapped(right)}"
    return f"({text})"


def _between(left: ast.expr, symbol: str, right: ast.expr) -> str:
    return f"({_wrapped(left)} {symbol} {_wrapped(right)})"


def _wrapped(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript) else f"({text})"


def _replaced(source: str, node: ast.expr | ast.stmt, after: str) -> str:
    """The file with a node's text changed; columns of syntax trees count bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    before = b"".join([*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]])
    behind = b"".join([lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]])
    return (before + after.encode() + behind).decode()
