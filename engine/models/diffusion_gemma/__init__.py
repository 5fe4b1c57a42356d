"""DiffusionGemma: its files, and the model."""
