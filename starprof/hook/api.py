"""What a training script may call: `watch`, `step`, `span`."""
