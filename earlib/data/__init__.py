"""Benchmarks, encoders, candidates and rerankers."""
