"""How ranks and a coordinator agree on one history of updates, as pure state machines."""
