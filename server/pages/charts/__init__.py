"""Charts of a study's pages: their drawing, and the history of rounds that they show."""
