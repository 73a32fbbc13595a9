"""A run against others that are known as good, or that lie beside it: what everybody is slower in, with nobody blamed.

Peers tell who is late, never that all are slow alike. Another run of the same job does: its steps, part by part.
"""

from starprof.analysis.baseline.judge import against
from starprof.analysis.baseline.profile import Profile, profile_of
from starprof.analysis.baseline.siblings import clean_sibling, with_sibling

__all__ = ["Profile", "against", "clean_sibling", "profile_of", "with_sibling"]
