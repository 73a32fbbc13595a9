"""The live side of a recording: follows the records as they come, judges them, and tells whoever asks."""
