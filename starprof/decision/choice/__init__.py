"""Which synchronisation mode is best for the workers as they are predicted."""
