"""How a contestant talks: a JSON object a line on stdin and stdout; nothing else may print there."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any


class Line:
    """stdout is kept for answers; what libraries print goes to stderr."""

    def __init__(self) -> None:
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **facts: Any) -> None:
        print(json.dumps(facts), file=self.answers, flush=True)

    def commands(self) -> Iterator[dict[str, Any]]:
        """Until the other side hangs up."""
        while line := sys.stdin.readline():
            yield json.loads(line)
