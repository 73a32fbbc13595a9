"""The in-process hook: times the parts of every training step inside the ranks, and never hurts the job."""
