"""Data sets, partitions over clients, augmentation, and the conversion between stored and normalised pixels."""
