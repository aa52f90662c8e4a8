"""What devices can bear, who decides, and the world they are in."""

import difflib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedbudget.control.policies import RULES
from fedbudget.resources.budget import split
from fedbudget.tables.table import Names, Table


class Budget(BaseModel):
    """Per client and round; any resource that is counted may be named.

    A list gives a limit for each device class; client i is of class i modulo their number.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, str | float | int | list[str | float | int]]

    device: str | list[str] = Field(
        "raspberry-pi-5",
        description="device profile that turns work into joules and degrees: its name, or a TOML file "
        "(see fedbudget profile); a list has one for each device class",
    )
    accounting: Literal["counted", "paper", "measured"] = Field(
        "counted",
        description="which usage the budgets are about: counted, paper (the proxies), measured (by "
        "clocks and sensors of the machine that trains)",
    )

    resources: list[str] = Field(
        [],
        description="resources of one's own that budgets may name: package.module:NAME of a "
        "fedbudget.Resource",
    )

    @property
    def devices(self) -> list[str]:
        """The profile of each device class; one where all have the same."""
        return self.device if isinstance(self.device, list) else [self.device]

    @property
    def classes(self) -> list[dict[str, str | float]]:
        """The limits of each device class, as they were written; one class without lists."""
        return split(self.__pydantic_extra__ or {}, self.device)


CONTROLLERS = (
    "fixed",
    "static",
    "planner",
    "rotation",
    "fedpaq",
    "cocofl",
    "heterofl",
    "adaptive",
    "cafl-l",
    "cafl",
    "clamped",
)


class Control(Table):
    controller: str = Field(
        "fixed",
        description="fixed, static (fixed, refused where it does not fit), planner, rotation (FedPart: "
        "a layer group at a time), fedpaq (fewer steps, QSGD), cocofl (random parts), heterofl (the "
        "deepest top part that fits), adaptive (Wang et al. 2019: steps by a bound), cafl-l, cafl, "
        "clamped (the CAFL-L authors' code), or package.module:function: a function of (costs, budgets, "
        "base knobs, cohort) for a Controller",
    )
    whole_rounds: int = Field(
        5, ge=0, description="rotation: rounds with all layers before each cycle"
    )
    group_rounds: int = Field(2, ge=1, description="rotation: rounds of each layer group")
    noise_scale: float = Field(
        16.0, gt=0, description="planner, rotation: gradient noise scale, in examples"
    )
    batches: list[Annotated[int, Field(ge=1)]] = Field(
        [2, 4, 8, 16, 32],
        min_length=1,
        description="planner, rotation: batch sizes to choose from",
    )
    codecs: Names = Field(
        ["raw32", "int8", "eden4", "eden3", "eden2", "eden1.6", "eden1"],
        min_length=1,
        description="planner, rotation: codecs to choose from",
    )
    thrift: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="planner, rotation: share of the expected progress given away for a code that "
        "sends less",
    )
    least_steps: int = Field(10, ge=1, description="planner, rotation: fewest local steps")
    most_steps: int = Field(1000, ge=1, description="planner, rotation: most local steps")
    eta: float = Field(0.01, gt=0, description="duals: step size")
    rule: Literal["ascent", "nupi", "augmented", "barrier"] = Field(
        "ascent", description="duals: ascent (with a dead zone), nupi, augmented, barrier"
    )
    zone: Literal["one-sided", "two-sided"] = Field(
        "one-sided", description="duals: one-sided (CAFL eq. 9), two-sided (the authors' code)"
    )
    epsilon: float = Field(0.05, ge=0, lt=1, description="duals: half-width of the dead zone")
    ema: float = Field(0.0, ge=0, lt=1, description="duals: weight of the past in smoothed usage")
    ki: float = Field(1.0, ge=0, description="duals, nupi: gain of the error")
    kp: float = Field(1.0, ge=0, description="duals, nupi: gain of its change")
    nu: float = Field(0.0, ge=0, lt=1, description="duals, nupi: weight of the past in that change")
    rho_max: float = Field(0.16, gt=0, description="duals, augmented: largest penalty")
    mu: float = Field(0.01, gt=0, description="duals, barrier: dual times slack at rest")
    thresholds: list[str] = Field(
        [*RULES],
        description="cafl-l, cafl, clamped: the dual above which a resource asks for a codec; a codec "
        "that is named later compresses more, and wins",
    )
    per: Literal["", "cohort", "class", "client"] = Field(
        "",
        description="cafl-l, cafl: whose duals: cohort (one for all), class, client; empty = client "
        "where device classes have limits of their own, class where they have devices, else cohort",
    )
    sparsify: bool = Field(
        False,
        description="cafl-l, cafl, clamped: send the top 80% (k > 2) or 60% of the numbers only, "
        "the papers' sparsity factor",
    )
    preserve_tokens: bool = Field(
        True,
        description="cafl-l, cafl, clamped: accumulate micro-batches to keep the samples (eq. 8)",
    )

    @field_validator("controller")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in CONTROLLERS and ":" not in value:
            near = difflib.get_close_matches(value, CONTROLLERS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"{hint}it must be {', '.join(CONTROLLERS)} or package.module:function"
            )
        return value


class WorldTable(Table):
    """A simulated fleet: the devices' own clock, heat, charge and presence.

    A list has a figure for each device class; client i is of class i modulo their number.
    """

    on: bool = Field(False, description="whether there is one; without it a round has no clock")
    select: Literal["uniform", "sparing", "power-of-choice", "oort"] = Field(
        "uniform",
        description="who is asked: uniform, sparing (cool, charged, fast devices more often), "
        "power-of-choice (largest loss of twice as many), oort (loss, speed, long unseen)",
    )
    efficiency: float = Field(
        1.0, gt=0, le=1, description="share of the profile's peak rate that training reaches"
    )
    memory: float | str | list[float | str] = Field(
        "",
        description='memory of a device, such as "64 MB"; work that needs more fails; "" = enough',
    )
    battery: float | str | list[float | str] = Field(
        "", description='energy of a full battery, such as "15 Wh"; "" = mains'
    )
    charging: float | list[float] = Field(0.0, description="watts that charge it, all the time")
    reserve: float = Field(
        0.2, ge=0, lt=1, description="share of the battery below which a device is not asked"
    )
    present: float | list[float] = Field(
        1.0, description="chance that a device can be asked in a round"
    )
    hot: float | str | list[float | str] = Field(
        "", description='where a device throttles: "45 C", or kelvin above ambient; "" = never'
    )
    slow: float = Field(0.5, gt=0, le=1, description="share of its speed when it throttles")
    deadline: float = Field(
        0.0,
        ge=0,
        description="device seconds after which a round goes on without the rest; 0 = none",
    )
    pause: float = Field(60.0, ge=0, description="device seconds between rounds")


class FleetTable(Table):
    """Nodes that come and go; for engine = "flower" and for Flower deployments."""

    least: int = Field(
        0, ge=0, description="clients that must be connected before a round; 0 = the cohort"
    )
    wait: float = Field(600.0, gt=0, description="seconds to wait for them")
    deadline: float = Field(
        0.0,
        ge=0,
        description="seconds that a client may take (on Flower: a round); later replies are dropped; "
        "0 = no limit",
    )
    rest_after: int = Field(2, ge=1, description="failures in a row after which a client rests")
    rest: int = Field(2, ge=0, description="rounds of its first rest; each further one is doubled")
