"""Packing: several runs of one process, whose steps of equal programs are one execution.

This room decides where a run does its steps, and with which others. A run knows only its `Stepper`.
"""
