"""Carries out plans on a host: swap, health, generations, lock, audit."""
