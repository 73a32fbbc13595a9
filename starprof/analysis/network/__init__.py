"""Where a slow reduction is slow: links, interfaces, and what the ranks share; `wire` says why."""
