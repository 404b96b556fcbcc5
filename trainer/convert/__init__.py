"""The command `trainer.convert`: experiments from Hugging Face directories, and the way back."""
