"""`python -m examples.demo`: the locks at work, on real workers, in half a minute."""
