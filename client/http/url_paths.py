"""Paths of requests, whose parts are ids and names from users and from services."""

from urllib.parse import quote


def url_path(*parts: object) -> str:
    """Return the path with these parts.

    Raises:
        ValueError: if a part would lead to another path, because it is empty, "." or "..", or if it
            is not Unicode text.
    """
    for part in parts:
        if str(part) in ("", ".", ".."):
            reason = "is empty" if str(part) == "" else f"cannot be {str(part)!r}"
            raise ValueError(f"an id or a name {reason}: `Analyst.studies()` lists all studies")
    try:
        return "".join(f"/{quote(str(part), safe='')}" for part in parts)
    except UnicodeEncodeError:
        raise ValueError(f"an id or a name in {parts} is not text") from None
