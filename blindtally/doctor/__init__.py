"""`blindtally doctor`: what is wrong with this machine or its service, and how to mend it.

    checks.py     what a check finds
    machine.py    Python, packages, AES, compiled kernels, a secure sum in memory, disk, clock
    service.py    settings, database, port
    command.py    the command

Nothing is changed: no database is made, and a port is held for an instant only.
"""
