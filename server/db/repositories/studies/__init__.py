"""Studies, what devices may still give to them, and what an analyst reads of them."""
