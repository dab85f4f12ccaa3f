"""Sudoku, in one turn or cell by cell."""
