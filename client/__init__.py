"""The device, the analyst and whole fleets of devices: the parties that talk to the service.

Read in this order: `policy` (what a device will take part in), `participation` (one device
in one round), `journal` (what it gave, so that it gives nothing else), `encoding` (from records
to a vector), `transport` and `problems` (HTTP, and what its refusals mean), `fleet` (hundreds
of devices in one process), `analyst` (who asks).
"""
