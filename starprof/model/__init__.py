"""The record model: what is measured, in which unit, under which name. Standard library only."""
