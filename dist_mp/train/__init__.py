"""Training on one rank: the step, the loop, evaluation, and what a run writes down."""
