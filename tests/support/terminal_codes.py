"""Codes that no terminal may receive from a stranger, as texts that a device or a server sends."""

from typing import Final

# Escape sequences and other control characters; those that rich itself writes are not among them.
CONTROLS: Final = (
    *("\x1b]0;title\x07", "\x1b[31;7;93mred", "\x1b]8;;https://x.test\x1b\\", "\x1bPq\x1b\\"),
    *("\x9b5n", "\x9d0;title\x9c", "\x90q", "\x85", "\x80", "\x9f"),
    *("\x07", "\x08\x08\x08", "\x0b", "\x0c", "\x0e", "\x7f", "\x00"),
    *("\rover", "\nforged  1,000", "\t"),
)
# Characters without a shape, or that reverse others.
INVISIBLE: Final = (
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    *("\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\u200b", "\u200d", "\u2060", "\ufeff"),
    *("\u00ad", "\u034f", "\u115f", "\u3164", "\u2800", "\ufe0f", "\U000e0041", "\U000e0101"),
    *("\xa0", "\u3000", "\ue000", "\ufff9"),
)
MARKUP: Final = "[red]m[/red][link=https://x.test]l[/link]:skull:"
CORPUS: Final = (*CONTROLS, *INVISIBLE)
# All codes in one text.
HOSTILE: Final = f"A{'|'.join(CORPUS)}Z"
FORBIDDEN: Final = frozenset("".join(CORPUS)) - {"\x1b"} - set(map(chr, range(0x20, 0x7F)))
