"""What NCCL and its tests leave behind: flight recorder, Inspector, bandwidth tests."""
