"""What every table of a config file is."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Names = list[Annotated[str, Field(min_length=1)]]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
