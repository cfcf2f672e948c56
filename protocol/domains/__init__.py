"""Domains of items, as integer keys and back; `Domain` is the union of all, by their `kind`.

alphabet   strings over a few known characters, up to `length` of them: groups of characters
           are numbers to the base |A|
utf8       any text of up to `max_bytes` bytes: up to 3 of them are a number to the base 256
hashed     strings of any length, by hashed keys
listed     a public dictionary: the key of an item is its position
interval   numbers from low to high, as digits
product    a listed segment and an item of another domain, written "segment:item"

`hashed-product` is a product with hashed keys.
"""

from typing import Annotated, TypeAlias

from pydantic import Field

from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Listed, Utf8

Domain: TypeAlias = Annotated[
    Alphabet | Utf8 | Hashed | HashedProduct | Listed | NumericInterval | Product,
    Field(discriminator="kind"),
]
