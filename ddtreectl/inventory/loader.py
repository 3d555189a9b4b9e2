"""Reads an inventory file; every error says file:line:column."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import (
    CommentedMap,
    CommentedOrderedMap,
    CommentedSeq,
    CommentedSet,
)
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    ScalarEvent,
)
from ruamel.yaml.scalarbool import ScalarBoolean

from ddtreectl.errors import InventoryError
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.names import PlacedError

MAX_BYTES = 1 << 20
MAX_DEPTH = 40
"""Levels of a document; parsing time grows with the square of them."""

MAX_NODES = 1 << 20
"""Nodes of a document, each alias counted as all that it stands for."""


def load(path: Path) -> Inventory:
    """Read and check the inventory at `path`.

    Raises:
        InventoryError: the file is missing, is no YAML, or breaks a rule of the models. All broken
            rules are listed, each with file:line:column.
    """
    return parse(_read(path), str(path))


def parse(text: str, name: str) -> Inventory:
    """Check the inventory `text`; `name` is the file name that errors mention."""
    document = _document(text, name)
    _refuse_tags(document, name)
    try:
        return Inventory.model_validate(_plain(document))
    except ValidationError as error:
        problems = sorted(
            (
                *_position(document, where, of_key=detail["type"] == "extra_forbidden"),
                _message(where, detail),
            )
            for detail in error.errors(include_url=False)
            for where in [_location(detail)]
        )
        raise InventoryError(
            "\n".join(f"{name}:{line}:{column}: {message}" for line, column, message in problems),
            hint="`ddtreectl inventory schema` prints every key",
        ) from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:  # which may have no end, as /dev/zero has none
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InventoryError(
            f"inventory `{path}` cannot be read",
            cause=error.strerror or str(error),
            hint="name another file with `--inventory PATH`",
        ) from error
    if len(content) > MAX_BYTES:
        raise InventoryError(f"inventory `{path}` is larger than {MAX_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InventoryError(f"{path}:{line}:1: not UTF-8 text") from error


def _document(text: str, name: str) -> CommentedMap:
    try:
        _measure(text, name)
        document = YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        mark = error.problem_mark
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else "a key"
        raise InventoryError(
            f"{name}:{mark.line + 1}:{mark.column + 1}: `{key}` is given twice"
        ) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        raise InventoryError(f"{name}:{at}: {error.problem or 'no YAML'}") from None
    except (YAMLError, ValueError, TypeError) as error:
        raise InventoryError(f"{name}:1:1: no YAML", cause=str(error)) from None
    if not isinstance(document, CommentedMap):
        raise InventoryError(f"{name}:1:1: the file holds no mapping with the key `hosts`")
    return document


def _measure(text: str, name: str) -> None:
    """Refuse a document that would take too long to read, before it is."""
    open_nodes = [0]  # nodes so far of each collection that is still open, and of the document
    anchors: list[str | None] = [None]
    sizes: dict[str, int] = {}
    for event in YAML(typ="rt").parse(text):
        at = f"{name}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
        if isinstance(event, CollectionStartEvent):
            open_nodes.append(1)
            anchors.append(event.anchor)
            if len(open_nodes) > MAX_DEPTH:
                raise InventoryError(f"{at}: nested too deeply")
        elif isinstance(event, CollectionEndEvent):
            size, anchor = open_nodes.pop(), anchors.pop()
            open_nodes[-1] += size
            if anchor:
                sizes[anchor] = size
        elif isinstance(event, AliasEvent):
            open_nodes[-1] += sizes.get(event.anchor, 1)
        elif isinstance(event, ScalarEvent):
            open_nodes[-1] += 1
        if open_nodes[-1] > MAX_NODES:
            raise InventoryError(f"{at}: its aliases stand for more than {MAX_NODES} values")


def _refuse_tags(node: object, name: str) -> None:
    """Refuse values of a type that only a tag makes (`!!omap`, `!!set`, `!custom`)."""
    tag = getattr(node, "tag", None)
    if getattr(tag, "value", None) is not None or isinstance(
        node, CommentedOrderedMap | CommentedSet
    ):
        at = getattr(node, "lc", None)
        line, column = (
            (at.line + 1, at.col + 1) if at is not None and at.line is not None else (1, 1)
        )
        raise InventoryError(f"{name}:{line}:{column}: tags such as `!!omap` have no place here")
    if isinstance(node, CommentedMap):
        for value in node.values():
            _refuse_tags(value, name)
    elif isinstance(node, CommentedSeq):
        for value in node:
            _refuse_tags(value, name)


def _plain(node: object) -> object:
    """The values of `node` as plain Python, so that strict models see no YAML types."""
    if isinstance(node, CommentedMap):
        return {_plain(key): _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value) for value in node]
    if isinstance(node, ScalarBoolean):  # an int for Python, which a port must not accept
        return bool(node)
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _location(detail: ErrorDetails) -> tuple[str | int, ...]:
    """Where a mistake is: as pydantic says, and from there on as the broken rule says."""
    cause = detail.get("ctx", {}).get("error")
    return (*detail["loc"], *(cause.location if isinstance(cause, PlacedError) else ()))


def _position(
    document: CommentedMap, location: Sequence[str | int], *, of_key: bool
) -> tuple[int, int]:
    """Line and column (from 1) of the deepest node of `location` that the file has.

    A scalar is shown where its value is, unless the mistake is its key; a block, where its key is.
    """
    node: object = document
    line, column = 0, 0
    for step in location:
        if isinstance(node, CommentedMap) and step in node:
            block = isinstance(node[step], CommentedMap | CommentedSeq)
            positions = node.lc.data[step]
            line, column = positions[:2] if block or of_key else positions[2:4]
            node = node[step]
        elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
            line, column = node.lc.data[step][:2]
            node = node[step]
        else:
            break
    return line + 1, column + 1


def _message(location: Sequence[str | int], detail: object) -> str:
    assert isinstance(detail, dict)  # noqa: S101
    where = ".".join(str(step) for step in location if step != "[key]")
    value = detail.get("input")
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key"
        case "missing":
            return f"{where}: required and not given"
        case "value_error":
            text = str(detail["ctx"]["error"])
        case "int_type":
            text = f"expects a whole number, value: {_yaml(value)}"
        case "string_type" if isinstance(value, bool | int | float):
            text = f"expects text, value: {_yaml(value)} (put it in quotes)"
        case _:
            text = str(detail["msg"]).replace("Input should be", "must be")
            text = f"{text}, value: {_yaml(value)}" if _short(value) else text
    return f"{where}: {text}" if where else text


def _short(value: object) -> bool:
    return isinstance(value, str | int | float | bool) and len(str(value)) < 80


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    return f'"{value}"' if isinstance(value, str) else str(value)
