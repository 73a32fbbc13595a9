"""Text logs of training frameworks."""
