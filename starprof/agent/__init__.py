"""The agent: one small process per node that samples the collectors and drains the ranks' rings."""
