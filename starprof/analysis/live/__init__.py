"""The detector for a job that still runs: step by step, in fixed memory."""
