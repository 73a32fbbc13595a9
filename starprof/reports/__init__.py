"""What people see of a run: the terminal summary and the HTML report, one module per section."""
