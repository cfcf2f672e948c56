"""Import of our top-level packages where a user's file has the name of one, such as `client.py`.

Python looks for `client` in the folder of the running program first, and then finds the user's
file. Ours is imported instead, which also works if that file is the program itself. If the user's
file has been imported already, or is imported later, the error names it.
"""

import sys
from collections.abc import Iterable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final, Never

_FOLDER: Final = Path(__file__).parents[1]
PACKAGES: Final = ("client", "protocol", "secagg")  # of analysts and devices


class ShadowedPackageError(ImportError):
    """A file of the user has the name of one of our packages."""


def import_own(names: Iterable[str] = PACKAGES) -> None:
    """Ensure that `names` are our packages and no files of the user.

    Raises:
        ShadowedPackageError: if a module of the user with one of the names is imported already.
    """
    for name in names:
        own = _FOLDER / name / "__init__.py"
        module = sys.modules.get(name)
        if module is not None:
            if not _is_same(module.__file__, own):
                raise _shadowed(name, module.__file__)
            continue
        spec = find_spec(name)
        if not _is_same(spec.origin if spec else None, own):
            _import_package(name, own, spec.origin if spec else None)


def _is_same(path: str | None, own: Path) -> bool:
    """Return whether the module at `path` is in our folder, which may be in an archive."""
    if path is None:
        return False
    folder = Path(path).parent
    return folder == own.parent or (folder.exists() and own.parent.samefile(folder))


def _import_package(name: str, own: Path, other: str | None) -> None:
    """Import our package; reading an unknown attribute of it raises an error that names `other`."""
    spec = spec_from_file_location(name, own, submodule_search_locations=[str(own.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)

    def missing(attribute: str) -> Never:
        is_submodule = any(own.parent.glob(f"{attribute}*"))
        if is_submodule or attribute.startswith("__"):
            raise AttributeError(f"{name} has no attribute {attribute!r}")
        raise _shadowed(name, other)

    vars(module)["__getattr__"] = missing
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _shadowed(name: str, path: str | None) -> ShadowedPackageError:
    file = path or f"a folder {name}"
    return ShadowedPackageError(
        f"{file} has the name of {name!r}, a package of blindtally: rename that file, because "
        "Python can import only one of them"
    )
