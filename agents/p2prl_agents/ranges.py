"""What values an agent's settings may have: types with bounds, which msgspec checks as it reads a config."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
#: Of something; all of it is one too.
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
#: A fraction that may not be all: of a mean that has to take something new in.
BelowOne = Annotated[float, Meta(ge=0.0, lt=1.0)]
#: A fraction that may not be nothing.
Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Above = Annotated[float, Meta(gt=0.0)]
Least0 = Annotated[float, Meta(ge=0.0)]
