"""The command `blindtally demo`: a whole study on one machine, over real HTTP."""
