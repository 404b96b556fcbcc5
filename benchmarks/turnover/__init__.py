"""The same trials with paxtune, Optuna and Ray Tune."""
