"""The audit log: who called which tool, what they were asked, what they answered, and what came of it.

`Trail` writes records in a chain of hashes (`records`), `verifying` finds records that were changed,
removed or reordered. Arguments and answers are recorded as keyed digests (`digests`).
"""

from __future__ import annotations

from roundgate.audit.records import answer_facts as answer_facts
from roundgate.audit.trail import Trail as Trail
