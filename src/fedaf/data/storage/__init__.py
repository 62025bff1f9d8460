"""The stored form of a data set, and the cache of converted files."""
