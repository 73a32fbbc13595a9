"""Who waits for whom: synchronisation modes as pure decisions."""
