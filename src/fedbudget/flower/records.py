"""Jobs and replies as Flower messages: a header in JSON, and our frame as bytes beside it.

The frame has a record of its own: Flower stores objects by their content, so a broadcast that goes
to many nodes crosses to the SuperLink once.
"""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedbudget.codecs import frame
from fedbudget.codecs.frame import FrameError, Packed
from fedbudget.types import Job, Knobs, Reply

WHO, TRAIN, ASSESS, FINAL = "query", "train", "evaluate", "evaluate.final"
"""what a node can be asked"""


def framed(packed: Packed) -> ConfigRecord:
    return ConfigRecord({"frame": bytes(frame.to_bytes(packed))})


def header(fields: Mapping[str, Any]) -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(fields)})


def read_header(content: RecordDict, name: str) -> dict[str, Any]:
    """The fields of a header; ValueError says what is wrong with it."""
    record = content.config_records.get(name)
    text = record.get("json") if record is not None else None
    if not isinstance(text, str):
        raise ValueError(f"it has no {name} header")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"its {name} header is not a table")
    return fields


def read_frame(content: RecordDict, name: str) -> Packed | None:
    """The frame under a name, or None where there is none; FrameError where it is not one."""
    record = content.config_records.get(name)
    if record is None:
        return None
    body = record.get("frame")
    if not isinstance(body, bytes):
        raise FrameError("not a frame")
    return frame.from_bytes(body)


def job_content(job: Job, down: ConfigRecord, floor: int) -> RecordDict:
    """A job, its broadcast and the oldest version of its state that may be asked for again."""
    return RecordDict({"job": header({**job.header(), "floor": floor}), "down": down})


def read_job(content: RecordDict) -> tuple[Job, int]:
    fields = read_header(content, "job")
    floor = int(fields.pop("floor"))
    payload = read_frame(content, "down")
    if payload is None:
        raise ValueError("the job has no frame")
    return Job.from_header(fields, payload), floor


def reply_content(reply: Reply) -> RecordDict:
    content = RecordDict({"reply": header(reply.header())})
    if reply.payload is not None:
        content["up"] = framed(reply.payload)
    return content


def read_reply(message: Message, job: Job) -> Reply:
    """What a node answered to a job; whatever is wrong with it becomes the reason in the Reply."""
    if message.has_error():
        return Reply.failure(job, f"Flower: {_line(message.error.reason or 'an error')}")
    try:
        fields = read_header(message.content, "reply")
        error = fields["error"]
        if error is not None:
            return Reply.failure(job, _line(str(error)), fields["lost"] is True)
        loss, knobs = fields["loss"], fields["knobs"]
        return Reply(
            run=int(fields["run"]),
            round=int(fields["round"]),
            client=job.client if int(fields["client"]) == job.client else -1,
            examples=int(fields["examples"]),
            loss=None if loss is None else float(loss),
            seconds=float(fields["seconds"]),
            usage={
                str(accounting): {str(r): float(amount) for r, amount in used.items()}
                for accounting, used in fields["usage"].items()
            },
            knobs=_knobs(knobs) if knobs else None,
            payload=read_frame(message.content, "up"),
        )
    except FrameError as problem:
        return Reply.failure(job, str(problem))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
        return Reply.failure(job, f"its reply cannot be read: {_line(str(problem))}")


def _knobs(fields: Mapping[str, Any]) -> Knobs:
    numbers = {name: int(fields[name]) for name in ("layers", "steps", "batch", "accumulate")}
    if min(numbers.values()) < 1:
        raise ValueError(f"knobs {numbers}")
    return Knobs(**numbers, codec=str(fields["codec"]), above=int(fields.get("above", 0)))


def _line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given")[:300]
