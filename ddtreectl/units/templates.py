"""The templates of the units, as Jinja reads them."""

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from ddtreectl import bundle


def templates() -> Environment:
    """The Jinja environment of the units: a value that is missing is an error."""
    return Environment(
        loader=FileSystemLoader(bundle.templates()),
        undefined=StrictUndefined,
        finalize=_not_none,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a unit is no HTML; values go through `escape`
    )


def _not_none(value: object) -> object:
    if value is None:
        raise TemplateError("a value of the template is None")
    return value
