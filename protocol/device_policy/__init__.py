"""Limits of a device, and the checks of a plan and of a cohort against them."""
