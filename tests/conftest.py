"""What all tests share: examples are not timed, since the machines they run on are shared."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
