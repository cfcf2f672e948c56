"""What a table holds: its keys and values, or as much of it as can be said.

A table at or below its capacity is read whole, and that is exact. Above it peeling gets stuck,
and what is left still speaks:

    keys, values   what was peeled, with the bound `false` on how many of them are not so. Values
                   are those of the keys, whichever they are; but heavy keys are peeled much more
                   often than light ones (`layout.py`: 52% and 14% at 1.1 times capacity), so sums
                   over the keys are biased, unless hash seeds are fresh for each table
    distinct       how many keys there were, within 5% (rms) up to twice the capacity of 1,250
                   cells and more; `capacity.py`
    residual       the table without what was peeled; `Iblt.most_of` bounds any key in it

Keys that are `known`, from earlier rounds say, help further; `memory.py`. A tight table that is
stuck (`tight.py`) tells `distinct` alone: it lists no key, and all of it is left.

Importing this module imports numba (`peeling.py`); devices have no use for it.
"""

from dataclasses import replace

from protocol.sketches.capacity import estimate_keys
from protocol.sketches.iblt import Iblt, Keys, Listing
from protocol.sketches.memory import recall
from protocol.sketches.peeling import Peeling
from secagg.ring import Vector


def list_entries(sketch: Iblt, table: Vector, known: Keys | None = None) -> Listing:
    """Return what `table` holds; see `Iblt.list_entries`."""
    sketch.ring.check(table)
    peeling = Peeling(sketch, table)
    peeling.run()
    listing = _listing(sketch, peeling)
    if listing.complete:
        return listing
    if sketch.cell.q:
        return _untold(sketch, table, listing)
    ended = _finished(sketch, peeling.copy())
    if not ended.complete and known is not None:
        recall(peeling, known)
        ended = _finished(sketch, peeling)
    return ended if ended.complete else listing


def _untold(sketch: Iblt, table: Vector, listing: Listing) -> Listing:
    """Return what a stuck tight table says: nothing but how many keys there may be.

    They are estimated where few false keys can have been taken out: at values up to 2 q.
    """
    peeling = Peeling(sketch, table)
    peeling.run(stages=2)
    distinct = _listing(sketch, peeling).distinct
    keys, values = listing.keys[:0], listing.values[:0]
    return replace(listing, keys=keys, values=values, distinct=distinct, residual=table)


def _finished(sketch: Iblt, peeling: Peeling) -> Listing:
    """Return what is listed if cells of a key may hold less than it.

    They do where a false key was taken out of them that is not found out yet, because the
    true keys in such a cell are not taken out.
    """
    peeling.run(strict=False)
    return _listing(sketch, peeling)


def _listing(sketch: Iblt, peeling: Peeling) -> Listing:
    keys, values = peeling.entries()
    stuck = peeling.stuck
    sound = bool((values <= sketch.cell.value_bound).all())
    if sketch.cell.q:
        sound = sound and int(values.sum()) <= sketch.cell.total_bound
    degree = sketch.layout.degree
    false = peeling.inspections * degree / sketch.cells * sketch.cell.odds
    complete = stuck == 0 and sound
    return Listing(
        keys=keys,
        values=values,
        complete=complete,
        distinct=estimate_keys(sketch.layout, len(keys), stuck),
        stuck=stuck,
        false=0.0 if complete else false,
        residual=peeling.residual() if stuck else sketch.ring.zero(),
    )
