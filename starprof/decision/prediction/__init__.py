"""How long each worker's next iterations will take."""
