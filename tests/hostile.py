"""Hostile bytes: pickles of each protocol, written down, so that nothing in this repository makes or loads any.

Each calls `sys.exit("a pickle was loaded")`: a process that ever loads one ends, and the test fails.
They are what `pickle.dumps(Boom(), protocol)` gave for a class whose `__reduce__` returns that call.
"""

from __future__ import annotations

#: By protocol, 0 to 5.
PICKLES = (
    b"csys\nexit\np0\n(Va pickle was loaded\np1\ntp2\nRp3\n.",
    b"csys\nexit\nq\x00(X\x13\x00\x00\x00a pickle was loadedq\x01tq\x02Rq\x03.",
    b"\x80\x02csys\nexit\nq\x00X\x13\x00\x00\x00a pickle was loadedq\x01\x85q\x02Rq\x03.",
    b"\x80\x03csys\nexit\nq\x00X\x13\x00\x00\x00a pickle was loadedq\x01\x85q\x02Rq\x03.",
    b"\x80\x04\x95*\x00\x00\x00\x00\x00\x00\x00\x8c\x03sys\x94\x8c\x04exit\x94\x93\x94\x8c\x13a pickle was loaded"
    b"\x94\x85\x94R\x94.",
    b"\x80\x05\x95*\x00\x00\x00\x00\x00\x00\x00\x8c\x03sys\x94\x8c\x04exit\x94\x93\x94\x8c\x13a pickle was loaded"
    b"\x94\x85\x94R\x94.",
)
#: One for where one is enough.
PICKLE = PICKLES[-1]
