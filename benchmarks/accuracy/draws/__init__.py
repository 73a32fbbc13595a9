"""What the generated set draws from: jobs, faults with their counters, work that is nobody's fault, oddities."""
