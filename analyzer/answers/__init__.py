"""Answers to the options' questions, as numbers, findings and tables."""
