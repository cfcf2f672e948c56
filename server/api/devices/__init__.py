"""Routes of devices and of the registrar that seats them."""
