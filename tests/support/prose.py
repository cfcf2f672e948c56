"""Prose of a file: docstrings, comments, messages, names, templates, scripts and Markdown.

Each kind of file is read without running it; `language.py` checks the result. Code in fenced
blocks and link targets are not prose.
"""

import ast
import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

CYTHON = {".pxd", ".pyx"}
SCRIPTS = {".css", ".js"}
_DOCSTRING = re.compile(r'^ *"""(.*?)"""', re.DOTALL | re.MULTILINE)
_HASH_COMMENT = re.compile(r"(?:^|(?<=\s))#+:?(?!!)[ \t]?(.*)")
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
_SCRIPT_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\w\"'])//[^\n]*", re.DOTALL)
_TEMPLATE_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|<(script|style)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_VISIBLE_ATTRIBUTE = re.compile(r"\b(?:title|placeholder|aria-label|alt|content)=\"([^\"]*)\"")
_LINK = re.compile(r"(?<=\])\([^)]*\)|https?://\S+|<[^>]*>")
_NAME_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_LEAVES = {"attr", "ctx", "id", "kind", "name", "op", "ops"}  # fields without nodes of interest
_PARENTS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.keyword, ast.Raise)
_STRING_EDGES = re.compile(r"^\s*(?:[rbfRBF]{0,2}[\"']+)?|[\"']+[,)\s]*$")


@dataclass(frozen=True, slots=True)
class Prose:
    """Text of a file; `lines` holds the number of the line of the file for each of its lines.

    `kind` is "module", "class", "function" or "property" (docstrings), "comment", "string", "help",
    "error", "name", "constant", "paragraph" (of Markdown) or "text".
    """

    kind: str
    lines: tuple[int, ...]
    text: str


def prose_of(path: Path, text: str) -> Iterator[Prose]:
    """Return the prose of the file at `path`, whose content is `text`."""
    if path.suffix in {".py", ".pyi"}:
        return _python(text, is_test=path.name.startswith("test_"))
    if path.suffix in CYTHON:
        return _cython(text)
    if path.suffix == ".md":
        return _markdown(text)
    if path.suffix == ".html":
        return _template(text)
    if path.suffix == ".ipynb":
        return _notebook(text)
    return _script(text) if path.suffix in SCRIPTS else _configuration(text)


def blank(match: re.Match[str]) -> str:
    """Return a text of the same length and lines that no rule matches."""
    return re.sub(r"[^\n]", "•", match[0])


def _python(text: str, *, is_test: bool) -> Iterator[Prose]:
    lines = text.split("\n")
    tree = ast.parse(text)
    names: dict[str, int] = {}
    kinds: dict[int, str] = {}  # of string nodes, by identity
    in_string: set[int] = set()  # lines of triple-quoted strings
    for node in _nodes(tree):
        if isinstance(node, _PARENTS):
            kinds |= _kinds(node)
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                names[name] = min(node.lineno, names.get(name, node.lineno))
            case ast.JoinedStr() | ast.Constant(value=str()):
                prose = _string(kinds.get(id(node), "string"), node, lines)
                if prose.text.count("\n"):
                    in_string.update(prose.lines)
                if prose.kind != "string" or " " in prose.text.strip():
                    yield prose
    for name, line in names.items():
        kind = "text" if is_test and name.startswith("test_") else "name"
        yield Prose(kind, (line,), " ".join(_NAME_PART.findall(name)))
    yield from _constants(tree)
    yield from _comments(text, in_string)


def _cython(text: str) -> Iterator[Prose]:
    """Return docstrings and comments; names have no special rules."""
    in_string: set[int] = set()
    for number, match in enumerate(_DOCSTRING.finditer(text)):
        first = text.count("\n", 0, match.start(1)) + 1
        block = list(enumerate(match[1].split("\n"), first))
        in_string.update(line for line, _ in block)
        yield _joined("function" if number else "module", block)
    yield from _comments(text, in_string)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a module, parents first, without those within an f-string."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in () if isinstance(node, ast.JoinedStr) else node._fields:
            if field in _LEAVES:
                continue
            value = getattr(node, field)
            if type(value) is list:
                waiting += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)


def _constants(tree: ast.Module) -> Iterator[Prose]:
    """Yield the names in capitals that the module itself assigns."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            for node in ast.walk(statement):
                match node:
                    case ast.Name(id=name, ctx=ast.Store()) if name.isupper():
                        yield Prose("constant", (node.lineno,), name)


def _kinds(node: ast.AST) -> dict[int, str]:
    """Return the kind of a string below `node`: a docstring, a help text or an error."""
    match node:
        case ast.Module(body=[ast.Expr(value=docstring), *_]):
            return {id(docstring): "module"}
        case ast.ClassDef(body=[ast.Expr(value=docstring), *_]):
            return {id(docstring): "class"}
        case (
            ast.FunctionDef(body=[ast.Expr(value=docstring), *_], decorator_list=decorators)
            | ast.AsyncFunctionDef(body=[ast.Expr(value=docstring), *_], decorator_list=decorators)
        ):
            decoration = " ".join(map(ast.unparse, decorators))
            is_noun = re.search("property|fixture", decoration) is not None
            return {id(docstring): "property" if is_noun else "function"}
        case ast.keyword(arg="help", value=value):
            return {id(value): "help"}
        case ast.Raise(exc=ast.Call(args=[message, *_])):
            return {id(message): "error"}
    return {}


def _string(kind: str, node: ast.JoinedStr | ast.Constant, lines: list[str]) -> Prose:
    first, last = node.lineno, node.end_lineno or node.lineno
    if first < last:  # in triple quotes, or several strings in a row
        source = [lines[first - 1][node.col_offset :], *lines[first:last]]
        text = "\n".join(_STRING_EDGES.sub("", line) for line in source)
        return Prose(kind, tuple(range(first, last + 1)), re.sub(r"\{[^{}\n]*\}", "X", text))
    values = node.values if isinstance(node, ast.JoinedStr) else [node]
    parts = (value.value if isinstance(value, ast.Constant) else "X" for value in values)
    return Prose(kind, (first,), "".join(map(str, parts)).replace("\n", " "))


def _comments(text: str, excluded: Container[int] = ()) -> Iterator[Prose]:
    """Yield each comment that starts with #; those on successive lines are joined."""
    if "#" not in text:
        return
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        match = None
        if "#" in line and number not in excluded:
            match = _HASH_COMMENT.search(_QUOTED.sub(blank, line))
        if block and not (match and line.lstrip().startswith("#")):
            yield _joined("comment", block)
            block = []
        if match:
            block.append((number, line[match.start(1) :]))


def _joined(kind: str, block: list[tuple[int, str]]) -> Prose:
    return Prose(kind, tuple(line for line, _ in block), "\n".join(text for _, text in block))


def _markdown(text: str) -> Iterator[Prose]:
    block: list[tuple[int, str]] = []
    fence = ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = re.match(r"\s*(?:```+|~~~+)\s*(\w*)", line)
        is_table = re.match(r"\s*[|<]", line) is not None
        is_start = re.match(r"\s*(?:[-*+]|\d+\.|#+|>)\s", line) is not None
        if block and (mark or is_table or is_start or not line.strip()):
            yield _joined("paragraph", block)
            block = []
        if mark:
            fence = "" if fence else mark[1] or "code"
        elif fence == "mermaid" or (is_table and not fence):
            yield Prose("text", (number,), _LINK.sub(blank, line))
        elif not fence and line.strip() and (block or is_start or not line.startswith("    ")):
            block.append((number, _LINK.sub(blank, line)))


def _template(text: str) -> Iterator[Prose]:
    text = _TEMPLATE_CODE.sub(blank, text)
    for match in _VISIBLE_ATTRIBUTE.finditer(text):
        yield Prose("text", (text.count("\n", 0, match.start()) + 1,), match[1])
    yield _whole(_TAG.sub(blank, text))


def _whole(text: str, first: int = 1) -> Prose:
    return Prose("text", tuple(range(first, first + text.count("\n") + 1)), text)


def _script(text: str) -> Iterator[Prose]:
    for match in _SCRIPT_COMMENT.finditer(text):
        yield _whole(match[0], text.count("\n", 0, match.start()) + 1)
    yield from _quoted(_SCRIPT_COMMENT.sub(blank, text))


def _configuration(text: str) -> Iterator[Prose]:
    yield from _comments(text)
    yield from _quoted(_HASH_COMMENT.sub("", text))


def _quoted(text: str) -> Iterator[Prose]:
    for number, line in enumerate(text.split("\n"), 1):
        for match in _QUOTED.finditer(line):
            if " " in match[0]:
                yield Prose("text", (number,), match[0])


def _notebook(text: str) -> Iterator[Prose]:
    for cell in json.loads(text)["cells"]:
        start = json.dumps("".join(cell["source"][:1]), ensure_ascii=False)[:-1]
        above = text[: text.find(start)].count("\n")
        source = "".join(cell["source"])
        for prose in _markdown(source) if cell["cell_type"] == "markdown" else _comments(source):
            yield Prose(prose.kind, tuple(line + above for line in prose.lines), prose.text)
