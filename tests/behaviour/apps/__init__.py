"""The apps of the workers of acceptance tests: releases, fleets, and one that knows no lock."""
