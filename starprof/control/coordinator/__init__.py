"""The coordinator's process: beside the job, so that it is never the straggler."""
