"""Proofs in Lean 4, with the compiler as the verifier."""
