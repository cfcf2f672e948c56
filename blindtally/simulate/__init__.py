"""The command `simulate`: studies in memory, measured against the truth."""
