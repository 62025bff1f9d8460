"""Data sets, the splits of them over clients, and the way between stored pixels and what a model sees."""
