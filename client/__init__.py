"""Clients of the service: devices, analysts, and fleets of simulated devices.

Programs import from `blindtally`, whose names docs/sdk.md explains.
"""
