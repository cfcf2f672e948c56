"""The command `plan`: predicted accuracy and cost of a study."""
