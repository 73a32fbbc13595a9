"""One series of step times for the whole job: shifts, stalls, periodic work and trends, nobody blamed."""
