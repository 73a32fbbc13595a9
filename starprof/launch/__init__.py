"""Starting a recording: the supervisor of the job, the agent and the ingester, and the link between nodes."""
