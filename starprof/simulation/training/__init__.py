"""What is trained in simulated time: real models, or what the noise of their gradients says they would learn."""
