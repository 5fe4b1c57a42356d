"""A job as tokens: the context as the model is shown it, and the canvas that is denoised."""
