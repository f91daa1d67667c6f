"""A model of workers, clients, sweeps, clocks and a network that loses answers, around the
real code of all of them.

Every process has an event loop of its own in virtual time (`world`), its own clocks (`processes`),
and reaches the real tables and a queue over a network (`network`). A seed decides who moves next
and what goes wrong. The witness sees each write, each beginning of a step and each effect, and
knows what must never be (`witness`):

- a task ends once; what is over does not change; each step is remembered once, and
  not begun again after that;
- who has lost a lease writes nothing, and begins no step; nobody takes a lease that still
  holds, whatever clocks say;
- an effect happens twice only if its worker died or its lease had lapsed; that of an
  `at_most_once` step never does;
- a suspect runs alone, and only who died alone is blamed; nobody innocent fails;
- what a client was told holds: its task is there, once, its answer taken, its cancellation final;
- when nothing goes wrong any more, every task comes to its end.

`test_model` runs some worlds of each kind, and mutants. `scripts/chaos model --seed N --count
MINUTES` goes on from there.
"""
