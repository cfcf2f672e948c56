"""Lists kept as the bytes they travel in: an item is made when it is looked at.

Whoever reads a list of a thousand to sign, label or pass on its bytes, and looks at a few of
its items, is not charged for the others.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Packed(Sequence[T], Generic[T]):
    """Items of `size` bytes each in `body`, which `read` makes of their bytes.

    Raises:
        ValueError: if the size of `body` is no multiple; `what` they are says so.
    """

    def __init__(
        self, body: bytes | memoryview, size: int, read: Callable[[bytes], T], what: str
    ) -> None:
        if len(body) % size:
            raise ValueError(f"{what} take {size} bytes each; {len(body)} is no multiple")
        self.body = body
        self._size = size
        self._starts = range(0, len(body), size)
        self._read = read

    def cut(self, at: int, place: int, size: int) -> bytes:
        """Return `size` bytes from `place` on of item `at`, which is not made for it."""
        start = self._starts[at] + place
        return bytes(self.body[start : start + size])

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            return tuple(map(self._item, self._starts[at]))
        return self._item(self._starts[at])

    def _item(self, start: int) -> T:
        return self._read(bytes(self.body[start : start + self._size]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash otherwise
