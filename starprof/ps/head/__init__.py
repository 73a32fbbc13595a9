"""The head of a parameter server: it decides what updates are made of, and holds no parameter itself."""
