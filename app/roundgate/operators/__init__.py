"""The operator's view of tasks, and the actions on them, which `roundgate tasks` and the console render.

`control` acts, `continuing` retries, `finding` searches, `facts` describes, `histories` exports.
"""

from __future__ import annotations

from roundgate.operators.control import ACTIONS as ACTIONS
from roundgate.operators.control import Act as Act
from roundgate.operators.control import Acted as Acted
from roundgate.operators.control import TaskControl as TaskControl
from roundgate.operators.control import possible_actions as possible_actions
from roundgate.operators.control import recorded as recorded
