"""The learned chooser: boosted trees that correct the heuristic's scores, trained in simulation, evaluated in numpy."""
