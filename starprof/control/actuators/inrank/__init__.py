"""The part that runs in the ranks: looks for orders between two steps, obeys those that the job allows, and reports."""
