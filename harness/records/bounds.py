"""The numbers that the harness measures and counts, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Number = Annotated[int, Meta(ge=0)]  # of anything that is counted, or counted from 0
Ordinal = Annotated[int, Meta(ge=1)]  # of anything that there is at least one of, or counted from 1
Amount = Annotated[float, Meta(ge=0)]  # seconds, samples/s and the like
Share = Annotated[float, Meta(ge=0, le=1)]
Duration = Annotated[float, Meta(ge=-1e9, le=1e9)]  # seconds; a difference of clocks may be below 0
Moment = Annotated[float, Meta(ge=0, le=2**37)]  # seconds since the epoch, up to the year 6325
