"""Tables of `tracked` without hash bits, chunks of hashed keys below a prime.

What devices send for the same plan is another vector now, so the cohorts of a round that is
running fail, and its study goes on with the next. What is over keeps its sums and answers.
"""

from server.migrations.running import fail_running_rounds

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Fail what is running; every row can be read as it is."""
    fail_running_rounds()
