"""The mechanisms of [Hsu12]: one private linear message per device."""
