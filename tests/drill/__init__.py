"""The drill: four hosts under load lose one part after the other, and nothing else."""
