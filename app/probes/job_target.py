"""Looks for a job's module and function in files, and executes nothing of them.

`importlib.util.find_spec` imports the packages above a module; here each piece is looked up in the
folders of the piece before, by the standard library's own finder for files.
"""

from __future__ import annotations

import ast
import re
import symtable
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from app.facts.job_target import JOB_ARGUMENTS, Found, JobTargetFacts, search_path
from app.facts.words import error_text, one_line
from app.probes.files import read_bytes

_TARGET = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<function>\w+)", re.ASCII)
_LARGEST = 4 * 1024 * 1024  # bytes of a source; generated ones reach hundreds of kB
# Finders that do not provide modules of a user's: Python's own, of setuptools' distutils, of
# virtualenv, of six, of pytest. Any other (an editable install's) may know what no folder shows.
_HARMLESS = frozenset(
    (
        *("_frozen_importlib", "_frozen_importlib_external", "_distutils_hack", "_virtualenv"),
        *("six", "_pytest.assertion.rewrite"),
    )
)
# What a package does that provides modules of its own making.
_MAKES_MODULES = (b"__path__", b"sys.modules")
# Names that a module can bind others with, unseen by a symbol table.
_BINDERS = frozenset(("__getattr__", "globals", "locals", "vars", "exec", "setattr"))


@dataclass(frozen=True, slots=True)
class _Module:
    """A module's file, or why there is none."""

    spec: ModuleSpec | None = None
    found: Found = Found.MODULE
    why: str = ""


def search_path_here(environ: Mapping[str, str]) -> list[str]:
    """Where worker and probe look, from this process's working folder."""
    try:
        return search_path(environ, str(Path.cwd()))
    except OSError:  # it was removed under us
        return search_path(environ, None)


def look(
    target: str, path: Sequence[str], finders: Iterable[object] | None = None
) -> JobTargetFacts:
    """Find the module along the path, and the function in its source. Raises nothing.

    `finders` are those of this Python (`sys.meta_path`) by default.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        return JobTargetFacts(target, Found.NO_MODULE, why="this is no package.module:function")
    facts = JobTargetFacts(target, Found.MODULE, searched=tuple(path))
    finders = sys.meta_path if finders is None else finders
    module = _find(match["module"].split("."), path, foreign=_foreign(finders))
    if module.spec is None:
        return replace(facts, found=module.found, why=module.why)
    file = module.spec.origin or ""
    if not isinstance(module.spec.loader, SourceFileLoader):
        why = "it is no source file" if file else "it is a package without a file of its own"
        found = Found.MODULE if file else Found.NO_FUNCTION
        return replace(facts, found=found, file=file, why=why)
    return _in_source(replace(facts, file=file), match["function"])


def _foreign(finders: Iterable[object]) -> str:
    """The first finder that may know more than files show, by its module."""
    modules = (str(getattr(finder, "__module__", "")) for finder in finders)
    return next((name for name in modules if name not in _HARMLESS), "")


def _find(pieces: Sequence[str], path: Sequence[str], *, foreign: str) -> _Module:
    """The spec of the last piece."""
    if pieces[0] in sys.builtin_module_names:
        return _Module(None, Found.UNKNOWN, f"{pieces[0]} is built into Python")
    spec: ModuleSpec | None = None
    folders: Sequence[str] = path
    PathFinder.invalidate_caches()  # a file may be younger than the last look at its folder
    for place, piece in enumerate(pieces):
        above = spec
        try:
            # By its last piece alone: for a whole name the finder asks for the imported parent.
            spec = PathFinder.find_spec(piece, folders)
        except (OSError, ValueError, ImportError, UnicodeError) as error:
            return _Module(None, Found.UNKNOWN, one_line(f"{type(error).__name__}: {error}"))
        if spec is None:
            return _missing(pieces[: place + 1], above, foreign)
        folders = list(spec.submodule_search_locations or ())
    return _Module(spec)


def _missing(pieces: Sequence[str], above: ModuleSpec | None, foreign: str) -> _Module:
    """Nothing in files; whether that settles it."""
    name = ".".join(pieces)
    if foreign:
        return _Module(None, Found.UNKNOWN, f"{name} is in no folder, and {foreign} may provide it")
    if above is None:
        return _Module(None, Found.NO_MODULE, f"no module {name}")
    parent = ".".join(pieces[:-1])
    where = above.origin or ", ".join(above.submodule_search_locations or ())
    if above.submodule_search_locations is None:
        return _Module(None, Found.NO_MODULE, f"{parent} ({where}) is a module and no package")
    if above.origin and _makes_modules(above.origin):
        return _Module(None, Found.UNKNOWN, f"{name} is in no folder, and {parent} may provide it")
    return _Module(None, Found.NO_MODULE, f"no module {pieces[-1]} in {parent} ({where})")


def _makes_modules(origin: str) -> bool:
    """Whether a package's own file speaks of paths or of the table of modules."""
    try:
        source, size = read_bytes(Path(origin), _LARGEST)
    except (OSError, ValueError):
        return True  # cannot say
    return size > _LARGEST or any(word in source for word in _MAKES_MODULES)


def _in_source(facts: JobTargetFacts, function: str) -> JobTargetFacts:
    """Read the module's source, and judge it."""
    try:
        source, size = read_bytes(Path(facts.file), _LARGEST)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        return replace(facts, found=Found.UNREADABLE, why=one_line(error_text(error)), errno=number)
    if size > _LARGEST:
        return replace(facts, why=f"its {size} bytes are too many to read here")
    return _in_text(facts, source, function)


def _in_text(facts: JobTargetFacts, source: bytes, function: str) -> JobTargetFacts:
    """Whether the source binds the name."""
    try:
        tree, table = _compiled(source, facts.file)
    except SyntaxError as error:
        why = one_line(error.msg or "invalid syntax")
        return replace(facts, found=Found.BROKEN, why=why, line=error.lineno)
    except ValueError as error:  # NUL bytes, before Python 3.12
        return replace(facts, found=Found.BROKEN, why=one_line(str(error)))
    except (RecursionError, MemoryError):  # of the parser; the import may well succeed deeper
        return replace(facts, why="it is too deeply nested to be read here")
    if function in _bound(table) and not _comprehended(tree, function):
        line, why = _wrong_call(tree, function)
        found = Found.NOT_CALLED_SO if why else Found.FUNCTION
        return replace(facts, found=found, why=why, line=line)
    if why := _hidden(tree, table, function):
        return replace(facts, why=why)
    return replace(facts, found=Found.NO_FUNCTION, names=_offered(tree))


def _compiled(source: bytes, file: str) -> tuple[ast.Module, symtable.SymbolTable]:
    """Syntax tree and top symbol table; compiling runs nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Some errors ('return' outside function) are found in the last step of a compilation only.
        compile(source, file, "exec", dont_inherit=True)
        tree = ast.parse(source, file)
        return tree, symtable.symtable(source, file, "exec")  # type: ignore[arg-type]


def _bound(table: symtable.SymbolTable) -> frozenset[str]:
    """The names that the module binds at its top."""
    return frozenset(
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    )


def _comprehended(tree: ast.Module, name: str) -> bool:
    """Whether comprehensions alone bind it: 3.12's table has their variables among those around."""
    own = {
        id(node)
        for each in ast.walk(tree)
        if isinstance(each, ast.comprehension)
        for node in ast.walk(each.target)
    }
    binding = [id(node) for node in ast.walk(tree) if _binds(node, name)]
    return bool(binding) and own.issuperset(binding)


def _wrong_call(tree: ast.Module, function: str) -> tuple[int | None, str]:
    """Line and why, where a plain function takes other arguments than a job is given.

    Silent about anything else: a decorated function, a class, a name that is bound twice.
    """
    binding = [node for node in ast.walk(tree) if _binds(node, function)]
    if len(binding) != 1 or binding[0] not in tree.body:
        return None, ""
    node = binding[0]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
        return None, ""
    if isinstance(node, ast.AsyncFunctionDef):
        return node.lineno, "it is an async function, and nothing awaits it"
    return node.lineno, _wrong_arguments(node.args)


def _wrong_arguments(takes: ast.arguments) -> str:
    """Whether a call with a job's arguments, by place, would be a TypeError."""
    given = len(JOB_ARGUMENTS)
    places = len(takes.posonlyargs) + len(takes.args)
    if places - len(takes.defaults) > given:
        return f"it is given {given} arguments and needs more"
    if places < given and takes.vararg is None:
        return f"it is given {given} arguments and takes {places}"
    return "it needs an argument by name, and is given none" if None in takes.kw_defaults else ""


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a piece of the tree gives the name a value, at any depth."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            return node.name == name
        case ast.MatchAs(name=bound) | ast.MatchStar(name=bound) | ast.MatchMapping(rest=bound):
            return bound == name
        case ast.Name(id=bound, ctx=ast.Store()):
            return bound == name
        case ast.alias():
            return (node.asname or node.name.partition(".")[0]) in (name, "*")
        case ast.Global():
            return name in node.names
    return False


def _hidden(tree: ast.Module, table: symtable.SymbolTable, function: str) -> str:
    """Why the name may be there though no line of the module's top binds it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            return f"it imports everything of {'.' * node.level}{node.module or ''}"
        if isinstance(node, ast.Global) and function in node.names:
            return "a function binds the name"
        # Within a comprehension it binds around it, and the symbol table calls that no assignment.
        if isinstance(node, ast.NamedExpr) and node.target.id == function:
            return "an expression binds the name"
    binders = _BINDERS & set(table.get_identifiers())
    return f"it uses {min(binders)}" if binders else ""


def _offered(tree: ast.Module) -> tuple[str, ...]:
    """Functions and classes at the module's top, in order."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tuple(node.name for node in tree.body if isinstance(node, kinds))
