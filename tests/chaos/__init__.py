"""Chaos: whole boots that are killed, hung, crashed, flooded and starved at every stage."""
