"""Messages of devices, from the first one, with which a device joins, to reports."""
