"""A device: the plans that it accepts, the state that it keeps, the messages that it sends."""
